// SPDX-License-Identifier: GPL-2.0
/* The questions of the two entries that each fault calls, for entry.S. */
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/sched.h>

#include "../../anon_order/table.h"
#include "../../provider/direct.h"
#include "entries.h"

/* Adds one to a counter whose address a CPU has kept; preemption is off. */
static __always_inline void count(unsigned long counter)
{
	__this_cpu_inc(*(u64 __percpu __force *)counter);
}

/* Keeps the question of a fault without a call of the policy, if it can be answered so. */
static __always_inline bool answered(struct vm_fault *vmf)
{
	const struct vm_area_struct *vma = vmf->vma;

	if (mmp_is_kept(&mmp_undecided, vma->vm_mm)) {
		count(__this_cpu_read(mmp_undecided_count));
		__this_cpu_write(mmp_question.vmf, NULL);
		return true;
	}
	if (!mmp_is_kept(&mmp_in_advance.of, vma->vm_mm) ||
	    (vma->vm_flags & MMP_SPECIAL_FLAGS) || __this_cpu_read(mmp_in_advance.left) <= 0)
		return false;
	__this_cpu_dec(mmp_in_advance.left);
	count(__this_cpu_read(mmp_in_advance.requested));
	count(__this_cpu_read(mmp_in_advance.reason));
	__this_cpu_write(mmp_question.vmf, vmf);
	__this_cpu_write(mmp_question.page, READ_ONCE(mmp_epoch) ^ (unsigned long)vma);
	return true;
}

/* For do_anonymous_page(): 0, or the answer for mmp_replace_fault(). */
notrace unsigned long mmp_fault_begin(struct vm_fault *vmf)
{
	if (!(vmf->flags & FAULT_FLAG_WRITE))
		return 0;
	preempt_disable();
	if (answered(vmf)) {
		preempt_enable();
		return 0;
	}
	__this_cpu_write(mmp_question.vmf, vmf);
	__this_cpu_write(mmp_question.key, READ_ONCE(mmp_epoch) ^ vmf->address);
	return mmp_wants_fault(vmf);	/* turns preemption on */
}

/* The answer to the fault of the current task, or stock if the question is another one. */
static __always_inline unsigned long answer_of(const struct vm_fault *vmf)
{
	guard(preempt)();
	if (__this_cpu_read(mmp_question.vmf) != vmf ||
	    __this_cpu_read(mmp_question.key) != (READ_ONCE(mmp_epoch) ^ vmf->address))
		return MM_POLICY_STOCK;
	return __this_cpu_read(mmp_question.answer);
}

/*
 * For __thp_vma_allowable_orders(): the sizes in place of @asked. For PMD size, the question is
 * that of a fault before. Larger sizes are for mappings of devices, which may refuse all others.
 *
 * The question is that of this very fault if its structure is on the stack of the current task,
 * with an address that was asked about. A task that has moved to another CPU since has no question
 * there, and gets the sizes of the administrator.
 */
notrace unsigned long mmp_orders_begin(struct vm_area_struct *vma, unsigned long vm_flags,
				       unsigned long why, unsigned long asked)
{
	const struct vm_fault *vmf = this_cpu_read(mmp_question.vmf);
	unsigned long answer = MM_POLICY_STOCK;

	if ((u32)why != MMP_TVA_FAULT || asked >= BIT(PMD_ORDER))
		return mmp_ask_orders(vma, vm_flags, why, asked);
	if (vmf && this_cpu_read(mmp_question.page) ==
	    (READ_ONCE(mmp_epoch) ^ (unsigned long)vma))
		return 0;
	if (vma->vm_ops)
		return mmp_ask_orders(vma, vm_flags, why, asked);
	if (vmf && !(((unsigned long)vmf ^ current_stack_pointer) >> THREAD_SHIFT))
		answer = answer_of(vmf);
	if (answer & MM_POLICY_STOCK)
		return asked & mmp_admin_sizes[!!(vm_flags & VM_HUGEPAGE)];
	if (answer & MMP_SWAPIN_ASKS)
		return mmp_ask_orders(vma, vm_flags, why, asked);
	return asked & answer;
}
