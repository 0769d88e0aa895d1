// SPDX-License-Identifier: GPL-2.0
/*
 * The point anon_order: the hooked __thp_vma_allowable_orders() runs whenever
 * the kernel asks which folio sizes a VMA may have. Its entry replaces the
 * sizes: in a fault by the policy's answer from the beginning of the fault
 * (fault.c), elsewhere by the sizes that the administrator has enabled.
 */
#include <linux/mm.h>
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

/*
 * Returns the ones of the orders @asked (a bitmap) that are allowed outside of
 * faults. MADV_COLLAPSE ignores the sizes that sysfs enables.
 */
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
 * Returns the allowed ones of the sizes @asked, in cases that the assembly of
 * the entry does not handle. For PMD size in a fault, the policy is asked
 * later, in do_huge_pmd_anonymous_page(). If that may wait for a userfaultfd,
 * the administrator's sizes apply.
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

/*
 * Gives the files of the point anon_order the kernel functions and variables that
 * mmp_needs_find() and mmp_call_find() have found. Context: after these two.
 */
void mmp_orders_found(void)
{
	mmp_sizes_found();
	mmp_fault_found();
	mmp_collapse_found();
	mmp_fold_found();
}
