// SPDX-License-Identifier: GPL-2.0
/*
 * The point anon_order for khugepaged: the hooked kernel function runs for each
 * range that khugepaged may collapse. It drops mmap_lock and takes it again,
 * and a process may delay that without limit. So the module either refuses the
 * range here, or stores the policy's answer and lets the function run with no
 * frame of the module on its stack. While it runs, orders.c limits its sizes to
 * the stored answer.
 */
#include "../sense/whose.h"
#include "direct.h"

DEFINE_STATIC_CALL_NULL(mmp_collapse_enter, mmp_khugepaged_enter);

/*
 * The policy's answer for the last range of khugepaged, which is a single
 * thread. It is valid for this VMA until policies or the administrator's sizes
 * change. The answer has at least one size that the administrator allows,
 * because the kernel would skip the rest of the VMA otherwise.
 */
static struct {
	const struct vm_area_struct *vma;
	unsigned long epoch;
	unsigned long given;
	unsigned long orders;
} noted;

/**
 * mmp_collapse_allowed - get the sizes that the policy allows for khugepaged's
 * current range
 * @vma: the VMA whose sizes the kernel asks for
 *
 * Return: a bit for each order; all bits if no answer is stored for @vma.
 */
unsigned long mmp_collapse_allowed(const struct vm_area_struct *vma)
{
	if (noted.vma != vma || noted.epoch != READ_ONCE(mmp_epoch) ||
	    noted.given != mmp_sizes_admin(vma->vm_flags, ~0UL))
		return ~0UL;
	return noted.orders;
}

/*
 * Returns true if khugepaged must skip the range. The policy is not asked about
 * MADV_COLLAPSE. The arguments are those of the hooked kernel function, which
 * gets the address of the range as first or as third one, depending on the
 * kernel.
 */
bool mmp_refuses_collapse(unsigned long first, struct vm_area_struct *vma, unsigned long third)
{
	unsigned long orders;

	if (!(current->flags & PF_KTHREAD) || !vma_is_anonymous(vma))
		return false;
	noted.vma = NULL;
	noted.epoch = READ_ONCE(mmp_epoch);
	noted.given = mmp_sizes_admin(vma->vm_flags, ~0UL);
	orders = mmp_ask(MM_POLICY_ANON_ORDER, ~0UL, collapse_orders, vma,
			 mmp_way(MMP_WAY_COLLAPSE_ADDRESS_FIRST) ? first : third);
	if (!(noted.given & orders) || !((orders & BIT(PMD_ORDER)) || MMP_COLLAPSE_ASKS))
		return true;
	noted.orders = orders;
	noted.vma = vma;
	return false;
}

/*
 * Runs in place of the hooked kernel function for a range that the policy
 * refuses: returns SCAN_FAIL (0), so khugepaged skips the range.
 */
int mmp_replace_collapse(void)
{
	return 0;
}

/**
 * mmp_collapse_later - register a process with khugepaged, as a fault of PMD
 * size would
 * @vma: VMA of a fault for which the policy wants a smaller size
 *
 * Context: may sleep, as in a fault.
 */
void mmp_collapse_later(struct vm_area_struct *vma)
{
	static_call(mmp_collapse_enter)(vma, vma->vm_flags);
}

/*
 * Makes the static calls of this file call the kernel functions that mmp_needs_find()
 * and mmp_call_find() have found. Context: after these two.
 */
void mmp_collapse_found(void)
{
	static_call_update(mmp_collapse_enter, mmp_found(MMP_NEED_enter));
}
