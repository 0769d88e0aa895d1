/* SPDX-License-Identifier: GPL-2.0 */
/* Nobody looks functions up here: they are linked. */
#define BTF_KFUNCS_START(name)	static const int name;
#define BTF_ID_FLAGS(...)
#define BTF_KFUNCS_END(name)
