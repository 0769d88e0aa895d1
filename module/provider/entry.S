/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Where functions of the kernel call us before they run. What the caller of the function
 * keeps in %rbx and %rbp are our fifth and sixth argument.
 */
#include <linux/linkage.h>
#include <linux/objtool.h>
#include <asm/asm-offsets.h>
#include <asm/frame.h>
#include <asm/nospec-branch.h>
#include <asm/unwind_hints.h>

/* The arguments of the function stay as they are, but for one: what we return. */
.macro MMP_ENTRY name, ask, changed, kept:vararg
SYM_START(\name, SYM_L_GLOBAL, SYM_F_ALIGN)
	ANNOTATE_NOENDBR	/* only called, and returned to */
	movq	%rbx, %r8
	movq	%rbp, %r9
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

/* From the last to the first. */
.macro MMP_POP first, rest:vararg
	.ifnb	\rest
	MMP_POP	\rest
	.endif
	popq	%\first
.endm

/*
 * If we want so, called as if the function were not there; the rest of it may be called
 * then. Else the function runs as ever, with nothing of ours below it.
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
	addq	$8, %rsp
	UNWIND_HINT_FUNC
	jmp	\instead
1:	RET
SYM_FUNC_END(\name)
.endm

/* The same where a bool in what the first argument points to says that we want so. */
.macro MMP_INSTEAD_IF name, offset, instead
SYM_START(\name, SYM_L_GLOBAL, SYM_F_ALIGN)
	ANNOTATE_NOENDBR
	movslq	\offset(%rip), %rax
	cmpb	$0, (%rdi,%rax)
	je	1f
	addq	$8, %rsp
	UNWIND_HINT_FUNC
	jmp	\instead
1:	CALL_DEPTH_ACCOUNT
	RET
SYM_FUNC_END(\name)
.endm

	.text
MMP_ENTRY mmp_entry_asked, mmp_ask_orders, %rcx, rdi, rsi, rdx
MMP_ENTRY mmp_entry_preempted, mmp_preempted, %rcx, rdi, rsi, rdx
MMP_ENTRY mmp_entry_thpsize, mmp_ask_thpsize, %rdi, rsi, rdx, rcx
MMP_INSTEAD mmp_entry_thp_gfp, mmp_wants_thp_gfp, mmp_instead_of_thp_gfp, rdi
MMP_INSTEAD_IF mmp_entry_compact, mmp_compact_direct, mmp_instead_of_compact
MMP_INSTEAD mmp_entry_madv_free, mmp_wants_madv_free, mmp_instead_of_madv_free, rdi, rsi, rdx, rcx
