/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Helpers for a shadow: a second policy whose answers are counted and not applied. The kernel does
 * not follow the shadow's answers, so these helpers work out whether an answer would have allocated
 * a folio. The unit tests compile this header in userland, as they do anon_order.h.
 */
#ifndef MMPOLICY_SHADOW_H
#define MMPOLICY_SHADOW_H

#include "anon_order.h"

/**
 * enum mmp_fate - outcome that the shadow policy's answer would have had
 * @MMP_SPARED: the shadow would have allocated no large folio in this fault: its
 *	answer is order 0, or a page of the folio is present already. In the
 *	latter case the shadow would have mapped the folio in an earlier
 *	fault, and this fault would not have happened.
 * @MMP_MADE: the shadow would have allocated a large folio in this fault
 * @MMP_UNCOUNTED: not counted: this fault asks the policy twice, and the other
 *	call is counted; or the fault is a swap-in
 */
enum mmp_fate {
	MMP_SPARED,
	MMP_MADE,
	MMP_UNCOUNTED,
};

/*
 * Returns true if all 2^@order page table entries around the fault are empty.
 * It reads the two neighbours of the fault first, as they are the most likely
 * to be present.
 */
static inline bool mmp_block_is_empty(const struct mmp_place *place, unsigned int order)
{
	long last = (1L << order) - 1, at = (place->addr >> PAGE_SHIFT) & last, i;

	if (!place->here)
		return true;
	if ((at && !pte_none(mmp_pte(place->here, -1))) ||
	    (at != last && !pte_none(mmp_pte(place->here, 1))))
		return false;
	for (i = 0; i <= last; i++)
		if (!pte_none(mmp_pte(place->here, i - at)))
			return false;
	return true;
}

/*
 * Returns true if the aligned block of @order around the fault lies within its
 * VMA.
 */
static inline bool mmp_block_suits(const struct vm_fault *vmf, unsigned int order)
{
	unsigned long size = PAGE_SIZE << order, start = vmf->address & -size;

	return start >= vmf->vma->vm_start && start + size <= vmf->vma->vm_end;
}

/**
 * mmp_fate_of - determine the outcome that the shadow policy's answer would
 * have had
 * @vmf: the fault
 * @site: the place in the fault path that asks the policy
 * @order: the shadow's answer; lowered to an order that fits into the VMA
 *
 * A fault without a page table asks the policy for PMD size first. If the
 * answer is smaller, or if the page table is empty, it asks again at
 * %MM_POLICY_PTE. Swap-in is not counted.
 */
static inline enum mmp_fate mmp_fate_of(const struct vm_fault *vmf,
					enum mm_policy_site site, unsigned int *order)
{
	struct mmp_place place;

	while (*order >= MMP_MIN_ORDER && !mmp_block_suits(vmf, *order))
		--*order;
	if (*order < MMP_MIN_ORDER)
		*order = 0;
	if (site == MM_POLICY_SWAPIN)
		return MMP_UNCOUNTED;
	if (site == MM_POLICY_PMD)
		return *order == MMP_MAX_ORDER ? MMP_MADE : MMP_UNCOUNTED;
	if (!*order)
		return MMP_SPARED;
	place = mmp_place(vmf);
	if (!mmp_block_is_empty(&place, *order))
		return MMP_SPARED;
	return *order == MMP_MAX_ORDER ? MMP_UNCOUNTED : MMP_MADE;
}

#endif /* MMPOLICY_SHADOW_H */
