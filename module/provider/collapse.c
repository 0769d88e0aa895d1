// SPDX-License-Identifier: GPL-2.0
/*
 * The point anon_order, khugepaged: a function is called for each range that it may make a
 * huge page of. It drops mmap_lock and takes it again, for which a process may make it wait as
 * long as it likes. So a range is refused here, or the answer is noted and the function runs as
 * ever, with nothing of ours on its stack. While it runs, orders.c limits its sizes
 * to the noted answer.
 */
#include "../sense/whose.h"
#include "direct.h"

DEFINE_STATIC_CALL_NULL(mmp_collapse_enter, mmp_khugepaged_enter);

/*
 * The answer of the policy for the last range of khugepaged, which is a single thread. It holds
 * for this VMA until policies or the administrator's sizes change, and always has a size that
 * keeps the kernel from passing over the whole VMA.
 */
static struct {
	const struct vm_area_struct *vma;
	unsigned long epoch;
	unsigned long given;
	unsigned long orders;
} noted;

/**
 * mmp_collapse_allowed - sizes that the policy allows where khugepaged is
 * @vma: that the kernel asks about
 * Return: a bit for each order.
 */
unsigned long mmp_collapse_allowed(const struct vm_area_struct *vma)
{
	if (noted.vma != vma || noted.epoch != READ_ONCE(mmp_epoch) ||
	    noted.given != mmp_sizes_admin(vma->vm_flags, ~0UL))
		return ~0UL;
	return noted.orders;
}

/*
 * Is the range to be left alone? MADV_COLLAPSE is not asked about. The arguments are those of
 * the kernel's function.
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

/* In place of the function where the range is refused: SCAN_FAIL. */
int mmp_replace_collapse(void)
{
	return 0;
}

/**
 * mmp_collapse_later - khugepaged gets to know a process, as in a fault of PMD size
 * @vma: of the fault, for which the policy wants a smaller size
 *
 * Context: may sleep, as in a fault.
 */
void mmp_collapse_later(struct vm_area_struct *vma)
{
	static_call(mmp_collapse_enter)(vma, vma->vm_flags);
}

/* Context: after mmp_needs_find() and mmp_call_find(). */
void mmp_collapse_found(void)
{
	static_call_update(mmp_collapse_enter, mmp_found(MMP_NEED_enter));
}
