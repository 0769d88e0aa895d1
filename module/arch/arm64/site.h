/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Finds and tests the instruction that ftrace patches in a kernel function. The
 * instruction before it is MOV x9, x30.
 */
#ifndef MMPOLICY_ARCH_ARM64_SITE_H
#define MMPOLICY_ARCH_ARM64_SITE_H

#include <linux/compiler.h>
#include <linux/types.h>
#include <asm/insn.h>

#define MMP_SITE_SIZE	AARCH64_INSN_SIZE
/*
 * this architecture may fold a block of entries into one TLB entry (contpte),
 * see fold.c
 */
#define MMP_FOLDS
#define __noendbr

#define MMP_MOV_X9_X30	0xaa1e03e9
#define MMP_NOP		0xd503201f

/*
 * Returns the address of the instruction that ftrace patches: it follows MOV
 * X9, X30.
 */
static inline void *mmp_site_of(void *function)
{
	return function + AARCH64_INSN_SIZE;
}

/*
 * Returns true if ftrace has patched in a call. All such calls go to a common
 * ftrace function, which reads the target from the word before the hooked
 * function.
 */
static inline bool mmp_site_calls(const void *site)
{
	return aarch64_insn_is_bl(READ_ONCE(*(const u32 *)site));
}

/*
 * Returns true if @site, which follows the instruction that saves x30, is a
 * call of ftrace or a NOP.
 */
static inline bool mmp_is_site(const void *site)
{
	return ((const u32 *)site)[-1] == MMP_MOV_X9_X30 &&
	       (mmp_site_calls(site) || READ_ONCE(*(const u32 *)site) == MMP_NOP);
}

/* Returns why the module cannot hook any function on this machine, or NULL. */
static inline const char *mmp_arch_lacks(void)
{
	return NULL;
}

#endif /* MMPOLICY_ARCH_ARM64_SITE_H */
