/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Empty versions of the macros that register kfuncs, as the linker finds the
 * functions here.
 */
#define BTF_KFUNCS_START(name)	static const int name;
#define BTF_ID_FLAGS(...)
#define BTF_KFUNCS_END(name)
