/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Entries: ftrace calls one of them at the start of each hooked kernel
 * function. %rdi and so on hold the arguments of the hooked function. The
 * return address points into that function.
 */
#include <linux/linkage.h>
#include <linux/objtool.h>
#include <asm/asm-offsets.h>
#include <asm/frame.h>
#include <asm/nospec-branch.h>
#include <asm/unwind_hints.h>

/*
 * Replaces one argument of the hooked function by the return value of @ask, and
 * continues the function.
 */
.macro MMP_ENTRY name, ask, changed, kept:vararg
SYM_START(\name, SYM_L_GLOBAL, SYM_F_ALIGN)
	/* reached by direct calls only, so needs no ENDBR */
	ANNOTATE_NOENDBR
	FRAME_BEGIN
	CALL_DEPTH_ACCOUNT
	.irp	register, \kept
	pushq	%\register
	.endr
	call	\ask
	movq	%rax, \changed
	MMP_POP	\kept
	FRAME_END
	RET
SYM_FUNC_END(\name)
.endm

/* Pops registers in reverse order. */
.macro MMP_POP first, rest:vararg
	.ifnb	\rest
	MMP_POP	\rest
	.endif
	popq	%\first
.endm

/*
 * Calls @instead in place of the hooked function, which does not run. It uses
 * RET to get there, which the CPU mispredicts once. A jump would leave one
 * return address too many on the CPU's return stack, and the CPU would
 * mispredict all returns further up.
 */
.macro MMP_GO instead
	leaq	\instead(%rip), %rax
	movq	%rax, (%rsp)
	RET
.endm

/*
 * Calls @wanted. If it returns true, @instead runs in place of the hooked
 * function, and may call its rest. If not, the hooked function continues
 * without a stack frame of the module.
 */
.macro MMP_INSTEAD name, wanted, instead, kept:vararg
SYM_START(\name, SYM_L_GLOBAL, SYM_F_ALIGN)
	ANNOTATE_NOENDBR
	FRAME_BEGIN
	CALL_DEPTH_ACCOUNT
	.irp	register, \kept
	pushq	%\register
	.endr
	call	\wanted
	MMP_POP	\kept
	FRAME_END
	testb	%al, %al
	jz	1f
	MMP_GO	\instead
1:	RET
SYM_FUNC_END(\name)
.endm

/*
 * Calls @wanted. If it returns a non-zero value, @instead runs in place of the
 * hooked function, which has one argument, and gets this value as second
 * argument. If it returns 0, the hooked function continues.
 */
.macro MMP_INSTEAD_WITH name, wanted, instead
SYM_START(\name, SYM_L_GLOBAL, SYM_F_ALIGN)
	ANNOTATE_NOENDBR
	FRAME_BEGIN
	CALL_DEPTH_ACCOUNT
	pushq	%rdi
	call	\wanted
	popq	%rdi
	FRAME_END
	testq	%rax, %rax
	jz	1f
	movq	%rax, %rsi
	MMP_GO	\instead
1:	RET
SYM_FUNC_END(\name)
.endm

/*
 * Runs @instead in place of the hooked function if a bool in the structure that
 * the first argument points to is true; the variable @offset holds its offset.
 * Otherwise the hooked function continues.
 */
.macro MMP_INSTEAD_IF name, offset, instead
SYM_START(\name, SYM_L_GLOBAL, SYM_F_ALIGN)
	ANNOTATE_NOENDBR
	CALL_DEPTH_ACCOUNT
	movslq	\offset(%rip), %rax
	cmpb	$0, (%rdi,%rax)
	je	1f
	MMP_GO	\instead
1:	RET
SYM_FUNC_END(\name)
.endm

/*
 * Runs @instead in place of the hooked function if its argument @gfp has the
 * flag for compaction without reclaim, which the variable @flag holds.
 * Otherwise the hooked function continues.
 */
.macro MMP_INSTEAD_GFP name, gfp, flag, instead
SYM_START(\name, SYM_L_GLOBAL, SYM_F_ALIGN)
	ANNOTATE_NOENDBR
	CALL_DEPTH_ACCOUNT
	testl	\flag(%rip), %\gfp
	jz	1f
	MMP_GO	\instead
1:	RET
SYM_FUNC_END(\name)
.endm

/*
 * Jumps to @entry if the return address in %rax equals element @nr of @table,
 * that is, if the hooked function of this element has called the shared entry.
 */
.macro MMP_IF_FROM table, nr, entry
	cmpq	\table+8*\nr(%rip), %rax
	je	\entry
.endm

	.text
MMP_ENTRY mmp_entry_orders_asked, mmp_ask_orders, %rcx, rdi, rsi, rdx
MMP_ENTRY mmp_entry_swapin, mmp_note_swapin, %rdi, rsi
MMP_ENTRY mmp_entry_thpsize, mmp_ask_thpsize, %rdi, rsi, rdx, rcx
MMP_INSTEAD_WITH mmp_entry_fault_asked, mmp_wants_fault, mmp_replace_fault
MMP_INSTEAD mmp_entry_huge, mmp_wants_huge, mmp_replace_huge, rdi
MMP_INSTEAD mmp_entry_khugepaged, mmp_wants_khugepaged, mmp_replace_khugepaged, rdi
MMP_INSTEAD mmp_entry_collapse, mmp_refuses_collapse, mmp_replace_collapse, rdi, rsi, rdx, rcx, r8
MMP_INSTEAD mmp_entry_thp_gfp, mmp_wants_thp_gfp, mmp_replace_thp_gfp, rdi
MMP_INSTEAD_GFP mmp_entry_reclaim, edx, mmp_only_compact, mmp_replace_reclaim
MMP_INSTEAD_GFP mmp_entry_node_reclaim, esi, mmp_only_compact, mmp_replace_node_reclaim
MMP_INSTEAD_GFP mmp_entry_charge, esi, mmp_only_compact, mmp_replace_charge
MMP_INSTEAD_IF mmp_entry_compact, mmp_compact_direct, mmp_replace_compact
MMP_INSTEAD mmp_entry_madv_free, mmp_wants_madv_free, mmp_replace_madv_free, rdi, rsi, rdx, rcx

/*
 * One entry shared by rarely called functions, because ftrace waits for all
 * tasks once per entry that it detaches. The return address identifies the
 * function; the C tables have this order, too. If no table has the address, as
 * when a livepatch has changed it, the hooked function continues.
 */
SYM_START(mmp_entry_rare, SYM_L_GLOBAL, SYM_F_ALIGN)
	ANNOTATE_NOENDBR
	movq	(%rsp), %rax
	MMP_IF_FROM mmp_back_rare, 0, mmp_entry_huge
	MMP_IF_FROM mmp_back_rare, 1, mmp_entry_swapin
	MMP_IF_FROM mmp_back_rare, 2, mmp_entry_collapse
	MMP_IF_FROM mmp_back_rare, 3, mmp_entry_khugepaged
	MMP_IF_FROM mmp_back_rare, 4, mmp_entry_thpsize
	MMP_IF_FROM mmp_back_rare, 5, mmp_entry_thpsize
	RET
SYM_FUNC_END(mmp_entry_rare)

SYM_START(mmp_entry_thp_gfp_any, SYM_L_GLOBAL, SYM_F_ALIGN)
	ANNOTATE_NOENDBR
	movq	(%rsp), %rax
	MMP_IF_FROM mmp_back_thp_gfp, 0, mmp_entry_thp_gfp
	MMP_IF_FROM mmp_back_thp_gfp, 1, mmp_entry_reclaim
	MMP_IF_FROM mmp_back_thp_gfp, 2, mmp_entry_reclaim
	MMP_IF_FROM mmp_back_thp_gfp, 3, mmp_entry_node_reclaim
	RET
SYM_FUNC_END(mmp_entry_thp_gfp_any)
