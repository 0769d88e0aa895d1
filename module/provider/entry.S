/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Where functions of the kernel call us before they run. The arguments of the
 * function stay as they are, but for one, which is what we return.
 */
#include <linux/linkage.h>
#include <asm/asm-offsets.h>
#include <asm/nospec-branch.h>

.macro MMP_ENTRY name, ask, changed, kept:vararg
SYM_FUNC_START(\name)
	pushq	%rbp
	movq	%rsp, %rbp
	CALL_DEPTH_ACCOUNT
	.irp	register, \kept
	pushq	%\register
	.endr
	call	\ask
	movq	%rax, \changed
	MMP_POP	\kept
	popq	%rbp
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

	.text
MMP_ENTRY mmp_entry_orders, mmp_ask_orders, %rcx, rdi, rsi, rdx
MMP_ENTRY mmp_entry_thpsize, mmp_ask_thpsize, %rdi, rsi, rdx, rcx
