/* SPDX-License-Identifier: GPL-2.0 */
/* The instruction of a function that ftrace patches. */
#ifndef MMPOLICY_ARCH_ARM64_SITE_H
#define MMPOLICY_ARCH_ARM64_SITE_H

#include <linux/compiler.h>
#include <linux/types.h>
#include <asm/insn.h>

#define MMP_SITE_SIZE	AARCH64_INSN_SIZE
#define MMP_FOLDS	/* entries of a block may be folded into one (contpte), see fold.c */
#define __noendbr

#define MMP_MOV_X9_X30	0xaa1e03e9
#define MMP_NOP		0xd503201f

/* Returns the instruction behind MOV X9, X30. */
static inline void *mmp_site_of(void *function)
{
	return function + AARCH64_INSN_SIZE;
}

/* All calls of ftrace go to one function of it, which reads from the word before the function. */
static inline bool mmp_site_calls(const void *site)
{
	return aarch64_insn_is_bl(READ_ONCE(*(const u32 *)site));
}

/* Does @site hold a call of ftrace, or a NOP, behind the instruction that saves x30? */
static inline bool mmp_is_site(const void *site)
{
	return ((const u32 *)site)[-1] == MMP_MOV_X9_X30 &&
	       (mmp_site_calls(site) || READ_ONCE(*(const u32 *)site) == MMP_NOP);
}

/* Returns the reason why no point can be used on this machine, or NULL. */
static inline const char *mmp_arch_lacks(void)
{
	return NULL;
}

#endif /* MMPOLICY_ARCH_ARM64_SITE_H */
