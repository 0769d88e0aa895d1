// SPDX-License-Identifier: GPL-2.0
/*
 * The point anon_order: __thp_vma_allowable_orders() is called wherever the kernel asks
 * which sizes a VMA may have, in a fault and elsewhere. Its entry replaces the sizes: in a
 * fault by the answer of the policy when the fault began (fault.c), elsewhere by the sizes of
 * the administrator.
 */
#include <linux/linkage.h>
#include <linux/mm.h>
#include <linux/objtool.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched/task_stack.h>
#include <linux/userfaultfd_k.h>

#include "../sense/whose.h"
#include "direct.h"

struct mmp_call mmp_call_orders = {
	.entry = mmp_entry_orders,
	.need = { MMP_NEED_orders },
};

#define STACK_SHIFT	(PAGE_SHIFT + THREAD_SIZE_ORDER)

static_assert(MM_POLICY_STOCK == 1 && MMP_SWAPIN_ASKS == 2);

/*
 * Runs in each fault of every task, so each instruction counts. %rcx has the sizes that the
 * kernel asks for, and gets the answer. Registers of other arguments do not change.
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
 * For PMD size, the question is that of a fault before. Larger sizes are for mappings of devices,
 * which may refuse all others.
 *
 * The question is that of this very fault if its structure is on the stack of the current
 * task, with an address that was asked about. A task that has moved to another CPU since has
 * no question there, and gets the sizes of the administrator. A reschedule that became due
 * in between happens at the next unlock in the fault.
 */
__naked notrace __noendbr void mmp_entry_orders(void)
{
	asm volatile(ANNOTATE_NOENDBR
	"	cmpl	%[fault], %%edx; jne	8f\n"
	"	cmpq	%[pmd], %%rcx; jae	8f\n"
	"	cmpq	$0, " __percpu_arg([vmf]) "; jne	2f\n"
	"	cmpq	$0, %c[vm_ops](%%rdi); jne	8f\n"
	"1:	testl	%[advised], %%esi; jne	4f\n"		/* as sysfs has it */
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
	"	testq	%%rdi, %%rdi; jne	1b\n"	/* always: the compiler adds an end */
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

/* With MADV_COLLAPSE, what sysfs enables does not matter. */
static unsigned long orders_elsewhere(struct vm_area_struct *vma, unsigned long vm_flags,
				      unsigned long why, unsigned long asked)
{
	if (mmp_tva_forced(why) || !vma_is_anonymous(vma))
		return asked;
	asked = mmp_sizes_admin(vm_flags, asked);
	if (mmp_tva_collapse(why) && asked && (current->flags & PF_KTHREAD))
		return asked & mmp_collapse_allowed(vma);
	return asked;
}

/*
 * Returns the sizes in place of @asked, where the entry cannot tell. For PMD size in a fault, the
 * policy is asked later, in do_huge_pmd_anonymous_page(), but not where that may wait for a
 * userfaultfd: policies leave such areas to the administrator.
 */
notrace __noendbr unsigned long mmp_ask_orders(struct vm_area_struct *vma,
					       unsigned long vm_flags,
					       unsigned long why, unsigned long asked)
{
	if (unlikely(!mmp_tva_fault(why) || !vma_is_anonymous(vma)))
		return orders_elsewhere(vma, vm_flags, why, asked);
	if (asked == BIT(PMD_ORDER))
		return !userfaultfd_armed(vma) && mmp_policy_decides(vma->vm_mm) ?
		       asked : mmp_sizes_admin(vm_flags, asked);
	return mmp_ask_swapin(vma, vm_flags, asked);
}

/* Context: after mmp_needs_find() and mmp_call_find(). */
void mmp_orders_found(void)
{
	mmp_sizes_found();
	mmp_fault_found();
	mmp_collapse_found();
}
