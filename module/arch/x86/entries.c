// SPDX-License-Identifier: GPL-2.0
/*
 * The two ftrace entries that every anonymous page fault calls. All other
 * entries are in entry.S.
 */
#include <linux/linkage.h>
#include <linux/mm.h>
#include <linux/objtool.h>
#include <linux/percpu.h>
#include <linux/sched.h>

#include "../../anon_order/table.h"
#include "../../provider/direct.h"

/*
 * Per-CPU variables that hold the current task and preempt_count(), and the
 * size suffix for instructions that change preempt_count().
 */
#if MMP_HAVE_PCPU_HOT
#define mmp_this_task		pcpu_hot.current_task
#define mmp_this_preempt_count	pcpu_hot.preempt_count
#else
#define mmp_this_task		current_task
#define mmp_this_preempt_count	__preempt_count
#endif
#ifdef CONFIG_HAS_SEPARATE_PREEMPT_RESCHED_BITS
#define MMP_COUNT		"q	"
#else
#define MMP_COUNT		"l	"
#endif

#define STACK_SHIFT	(PAGE_SHIFT + THREAD_SIZE_ORDER)

static_assert(MM_POLICY_STOCK == 1 && MMP_SWAPIN_ASKS == 2);

/*
 * mmp_entry_fault() runs in each fault of every task, so each instruction counts. Registers of
 * arguments do not change.
 *
 *	if (!(vmf->flags & FAULT_FLAG_WRITE))
 *		return;
 *	preempt_disable();
 *	if (mmp_is_kept(&mmp_undecided, vmf->vma->vm_mm)) {
 *		(*mmp_undecided_count)++;
 *		mmp_question.vmf = NULL;
 *	} else if (mmp_is_kept(&mmp_in_advance.of, vmf->vma->vm_mm) &&
 *		   !(vmf->vma->vm_flags & MMP_SPECIAL_FLAGS) && mmp_in_advance.left) {
 *		mmp_in_advance.left--;
 *		(*mmp_in_advance.requested)++;
 *		(*mmp_in_advance.reason)++;
 *		mmp_question.vmf = vmf;
 *		mmp_question.page = mmp_epoch ^ vmf->vma;
 *	} else {
 *		mmp_question.vmf = vmf;
 *		mmp_question.key = mmp_epoch ^ vmf->address;
 *		goto mmp_entry_fault_asked;
 *	}
 *	preempt_enable_no_resched();
 *
 * A reschedule that became due in between happens at the next unlock in the fault.
 */
__naked notrace __noendbr void mmp_entry_fault(void)
{
	asm volatile(ANNOTATE_NOENDBR
	"	testb	%[write], %c[flags](%%rdi); je	2f\n"
	"	movq	%c[vma](%%rdi), %%r11\n"
	"	inc" MMP_COUNT __percpu_arg([count]) "\n"
	"	movq	%[now], %%r9\n"
	"	movq	" __percpu_arg([me]) ", %%r10\n"
	"	movq	%c[vm_mm](%%r11), %%r8\n"
	"	xorq	%c[birth](%%r10), %%r8\n"
	"	cmpq	%%r8, " __percpu_arg([task]) "; jne	1f\n"
	"	cmpq	%%r9, " __percpu_arg([epoch]) "; jne	3f\n"
	"	movq	" __percpu_arg([counter]) ", %%r8\n"
	"	incq	%%gs:(%%r8)\n"
	"	movq	$0, " __percpu_arg([question]) "\n"
	"	dec" MMP_COUNT __percpu_arg([count]) "\n"
	"2:\n"
	ASM_RET
	"1:	cmpq	%%r8, " __percpu_arg([ahead_task]) "; jne	3f\n"
	"	cmpq	%%r9, " __percpu_arg([ahead_epoch]) "; jne	3f\n"
	"	testl	%[special], %c[vm_flags](%%r11); jne	3f\n"
	"	decl	" __percpu_arg([left]) "; js	4f\n"
	"	movq	" __percpu_arg([requested]) ", %%r8\n"
	"	incq	%%gs:(%%r8)\n"
	"	movq	" __percpu_arg([reason]) ", %%r8\n"
	"	incq	%%gs:(%%r8)\n"
	"	xorq	%%r11, %%r9\n"
	"	movq	%%r9, " __percpu_arg([page]) "\n"
	"	movq	%%rdi, " __percpu_arg([question]) "\n"
	"	dec" MMP_COUNT __percpu_arg([count]) "\n"
	ASM_RET
	"4:	incl	" __percpu_arg([left]) "\n"
	"3:	movq	%%rdi, " __percpu_arg([question]) "\n"
	"	xorq	%c[address](%%rdi), %%r9\n"
	"	movq	%%r9, " __percpu_arg([key]) "\n"
	"	jne	mmp_entry_fault_asked\n"	/* always taken: no address is this small */
	: : [write] "i" (FAULT_FLAG_WRITE),
	    [flags] "i" (offsetof(struct vm_fault, flags)),
	    [vma] "i" (offsetof(struct vm_fault, vma)),
	    [address] "i" (offsetof(struct vm_fault, address)),
	    [vm_mm] "i" (offsetof(struct vm_area_struct, vm_mm)),
	    [birth] "i" (offsetof(struct task_struct, start_boottime)),
	    [count] "m" (__my_cpu_var(mmp_this_preempt_count)),
	    [me] "m" (__my_cpu_var(mmp_this_task)), [now] "m" (mmp_epoch),
	    [task] "m" (__my_cpu_var(mmp_undecided.task)),
	    [epoch] "m" (__my_cpu_var(mmp_undecided.epoch)),
	    [counter] "m" (__my_cpu_var(mmp_undecided_count)),
	    [special] "i" (MMP_SPECIAL_FLAGS),
	    [vm_flags] "i" (offsetof(struct vm_area_struct, vm_flags)),
	    [ahead_task] "m" (__my_cpu_var(mmp_in_advance.of.task)),
	    [ahead_epoch] "m" (__my_cpu_var(mmp_in_advance.of.epoch)),
	    [left] "m" (__my_cpu_var(mmp_in_advance.left)),
	    [requested] "m" (__my_cpu_var(mmp_in_advance.requested)),
	    [reason] "m" (__my_cpu_var(mmp_in_advance.reason)),
	    [page] "m" (__my_cpu_var(mmp_question.page)),
	    [question] "m" (__my_cpu_var(mmp_question.vmf)),
	    [key] "m" (__my_cpu_var(mmp_question.key)));
}

/*
 * mmp_entry_orders(), for __thp_vma_allowable_orders(), runs in each fault of every task, so each
 * instruction counts. %rcx has the sizes that the kernel asks for, and gets the answer.
 * Registers of other arguments do not change.
 *
 *	if (why != fault || orders >= BIT(PMD_ORDER))
 *		goto mmp_entry_orders_asked;
 *	if (mmp_question.vmf && mmp_question.page == (mmp_epoch ^ vma)) {
 *		orders = 0;
 *		return;
 *	}
 *	if (vma->vm_ops)
 *		goto mmp_entry_orders_asked;
 *	vmf = this_cpu_read(mmp_question.vmf);
 *	if (!vmf || vmf is on another stack)
 *		goto given;
 *	key = mmp_epoch ^ vmf->address;
 *	preempt_disable();
 *	if (this CPU's question is another one, or has another key)
 *		goto given;
 *	answer = this_cpu_read(mmp_question.answer);
 *	preempt_enable_no_resched();
 *	if (answer & MM_POLICY_STOCK)
 *		goto given;
 *	if (answer & MMP_SWAPIN_ASKS)
 *		goto mmp_entry_orders_asked;
 *	orders &= answer;
 *	return;
 * given:
 *	orders &= mmp_admin_sizes[!!(vm_flags & VM_HUGEPAGE)];
 *
 * PMD size goes to the C code, as this CPU's question (struct mmp_question) is then still that of
 * an earlier fault. So do larger sizes: the kernel asks for them for mappings of devices only.
 *
 * The question belongs to this fault if its @vmf is on the stack of the current task and its @key
 * matches. A task that has moved to another CPU since the question was stored does not find it
 * there, and gets the sizes of the administrator. A reschedule that became due in
 * between happens at the next unlock in the fault.
 */
__naked notrace __noendbr void mmp_entry_orders(void)
{
	asm volatile(ANNOTATE_NOENDBR
	"	cmpl	%[fault], %%edx; jne	8f\n"
	"	cmpq	%[pmd], %%rcx; jae	8f\n"
	"	cmpq	$0, " __percpu_arg([vmf]) "; jne	2f\n"
	"	cmpq	$0, %c[vm_ops](%%rdi); jne	8f\n"
	/* stock: apply the sizes that sysfs enables */
	"1:	testl	%[advised], %%esi; jne	4f\n"
	"	andq	%[given], %%rcx\n"
	ASM_RET
	"2:	movq	%[now], %%r9; xorq	%%rdi, %%r9\n"
	"	cmpq	%%r9, " __percpu_arg([page]) "; je	6f\n"
	"	cmpq	$0, %c[vm_ops](%%rdi); jne	8f\n"
	"	movq	" __percpu_arg([vmf]) ", %%r8\n"
	"	movq	%%rsp, %%r9; xorq	%%r8, %%r9; shrq	%[shift], %%r9; jne	1b\n"
	"	movq	%c[address](%%r8), %%r9\n"
	"	xorq	%[now], %%r9\n"
	"	inc" MMP_COUNT __percpu_arg([count]) "\n"
	"	cmpq	%%r8, " __percpu_arg([vmf]) "; jne	3f\n"
	"	cmpq	%%r9, " __percpu_arg([key]) "; jne	3f\n"
	"	movq	" __percpu_arg([answer]) ", %%r8\n"
	"	dec" MMP_COUNT __percpu_arg([count]) "\n"
	"	testb	%[special], %%r8b; jne	5f\n"
	"	andq	%%r8, %%rcx\n"
	ASM_RET
	"4:	andq	%[given_advised], %%rcx\n"
	ASM_RET
	"6:	xorl	%%ecx, %%ecx\n"
	ASM_RET
	"5:	testb	%[stock], %%r8b; jne	1b\n"
	"8:	jmp	mmp_entry_orders_asked\n"
	"3:	dec" MMP_COUNT __percpu_arg([count]) "\n"
	/* always taken; it hides the code that the compiler adds at the end */
	"	testq	%%rdi, %%rdi; jne	1b\n"
	: : [fault] "i" (MMP_TVA_FAULT), [advised] "i" (VM_HUGEPAGE),
	    [pmd] "i" (BIT(PMD_ORDER)), [shift] "i" (STACK_SHIFT),
	    [special] "i" (MM_POLICY_STOCK | MMP_SWAPIN_ASKS), [stock] "i" (MM_POLICY_STOCK),
	    [vm_ops] "i" (offsetof(struct vm_area_struct, vm_ops)),
	    [address] "i" (offsetof(struct vm_fault, address)), [now] "m" (mmp_epoch),
	    [count] "m" (__my_cpu_var(mmp_this_preempt_count)),
	    [vmf] "m" (__my_cpu_var(mmp_question.vmf)),
	    [key] "m" (__my_cpu_var(mmp_question.key)),
	    [answer] "m" (__my_cpu_var(mmp_question.answer)),
	    [page] "m" (__my_cpu_var(mmp_question.page)),
	    [given] "m" (mmp_admin_sizes[false]),
	    [given_advised] "m" (mmp_admin_sizes[true]));
}
