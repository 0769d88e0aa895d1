/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Layout of the context of a fault, which the header for authors and the module
 * define separately.
 */
#define MMP_LAYOUT {							\
	sizeof(struct mmp_told),					\
	__builtin_offsetof(struct mmp_fault, address),			\
	__builtin_offsetof(struct mmp_fault, start),			\
	__builtin_offsetof(struct mmp_fault, end),			\
	__builtin_offsetof(struct mmp_fault, knob),			\
	__builtin_offsetof(struct mmp_fault, site),			\
}
