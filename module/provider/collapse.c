// SPDX-License-Identifier: GPL-2.0
/*
 * The point anon_order, khugepaged: a function is called for each range that it may make
 * a huge page of. Sizes that are asked for meanwhile (orders.c) are held to the answer.
 */
#include "direct.h"

static DEFINE_PER_CPU(long, inside);

struct mmp_call mmp_call_collapse = {
	.entry = mmp_entry_collapse,
	.need = { MMP_NEED_collapse },
	.inside = &inside,
};

DEFINE_STATIC_CALL_NULL(mmp_collapse_original, mmp_replace_collapse);

DEFINE_STATIC_CALL_NULL(mmp_collapse_enter, mmp_khugepaged_enter);

/* Sizes that the policy allows in the range that khugepaged, of which there is one, is at. */
unsigned long mmp_collapse_allowed = ~0UL;

/* MADV_COLLAPSE is not asked about. */
bool mmp_wants_collapse(unsigned long first, struct vm_area_struct *vma)
{
	return (current->flags & PF_KTHREAD) && vma_is_anonymous(vma);
}

/* The arguments are those of the kernel's function; some kernels have one less. */
int mmp_replace_collapse(unsigned long first, struct vm_area_struct *vma,
			 unsigned long third, unsigned long fourth, unsigned long fifth)
{
	unsigned long orders;
	int result = 0;		/* SCAN_FAIL */

	mmp_call_enter(inside);
	orders = mmp_ask(MM_POLICY_ANON_ORDER, ~0UL, collapse_orders, vma,
			 mmp_way(MMP_WAY_COLLAPSE_ADDRESS_FIRST) ? first : third);
	if ((orders & BIT(PMD_ORDER)) || MMP_COLLAPSE_ASKS) {
		WRITE_ONCE(mmp_collapse_allowed, orders);
		result = static_call(mmp_collapse_original)(first, vma, third, fourth, fifth);
		WRITE_ONCE(mmp_collapse_allowed, ~0UL);
	}
	mmp_call_leave(inside);
	return result;
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
	static_call_update(mmp_collapse_original, mmp_call_original(&mmp_call_collapse, 0));
	static_call_update(mmp_collapse_enter, mmp_found(MMP_NEED_enter));
}
