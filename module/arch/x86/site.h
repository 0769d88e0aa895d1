/* SPDX-License-Identifier: GPL-2.0 */
/* Finds and tests the instruction that ftrace patches in a kernel function. */
#ifndef MMPOLICY_ARCH_X86_SITE_H
#define MMPOLICY_ARCH_X86_SITE_H

#include <linux/compiler.h>
#include <linux/string.h>
#include <linux/types.h>
#include <asm/cpufeature.h>
#include <asm/ftrace.h>
#include <asm/ibt.h>
#include <asm/text-patching.h>

#include "../../features.h"

#define MMP_SITE_SIZE	MCOUNT_INSN_SIZE
#define MMP_DECODES	/* code.c decodes kernel code with the kernel's own decoder */

/* True if the instruction at address @at is an ENDBR. */
#if !MMP_HAVE_IS_ENDBR_AT_PLACE
#define mmp_is_endbr(at)	is_endbr(*(u32 *)(at))
#elif defined(CONFIG_X86_KERNEL_IBT)
#define mmp_is_endbr(at)	__is_endbr(*(u32 *)(at))
#else
#define mmp_is_endbr(at)	((void)(at), false)
#endif

/*
 * Returns the address of the instruction that ftrace patches: the first one of
 * the function, or the one after its ENDBR.
 */
static inline void *mmp_site_of(void *function)
{
	return mmp_is_endbr(function) ? function + ENDBR_INSN_SIZE : function;
}

/* Returns true if @site is a call of ftrace, or a 5-byte NOP. */
static inline bool mmp_is_site(const void *site)
{
	static const u8 nop[MCOUNT_INSN_SIZE] = { 0x0f, 0x1f, 0x44, 0x00, 0x00 };

	return *(const u8 *)site == CALL_INSN_OPCODE || !memcmp(site, nop, sizeof(nop));
}

/*
 * Returns true if ftrace has patched in a call. While ftrace changes a call,
 * for example for another tracer, a breakpoint (INT3) is in its place.
 */
static inline bool mmp_site_calls(const void *site)
{
	u8 opcode = READ_ONCE(*(const u8 *)site);

	return opcode == CALL_INSN_OPCODE || opcode == INT3_INSN_OPCODE;
}

/* Returns why the module cannot hook any function on this machine, or NULL. */
static inline const char *mmp_arch_lacks(void)
{
	if (cpu_feature_enabled(X86_FEATURE_XENPV))
		return "page tables of Xen PV are not supported";
	if (cpu_feature_enabled(X86_FEATURE_CALL_DEPTH))
		return "the kernel counts the depth of calls (retbleed=stuff)";
	return NULL;
}

#endif /* MMPOLICY_ARCH_X86_SITE_H */
