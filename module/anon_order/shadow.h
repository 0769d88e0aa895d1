/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The fate that the answer of a shadow would have had. No fault follows it. Also
 * compiled in userland, as anon_order.h is.
 */
#ifndef MMPOLICY_SHADOW_H
#define MMPOLICY_SHADOW_H

#include "anon_order.h"

/**
 * enum mmp_fate - what would have become of an answer
 * @MMP_SPARED: a page of the folio is there, so the folio would be: no fault
 * @MMP_MADE: a folio would have been made here; order 0 is always %MMP_SPARED
 * @MMP_UNCOUNTED: this fault asks twice, and is counted at the other time
 */
enum mmp_fate {
	MMP_SPARED,
	MMP_MADE,
	MMP_UNCOUNTED,
};

/* Are all 2^@order entries around the fault empty? The nearest two are read first. */
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

/* Is the block around a fault within its VMA? */
static inline bool mmp_block_suits(const struct vm_fault *vmf, unsigned int order)
{
	unsigned long size = PAGE_SIZE << order, start = vmf->address & -size;

	return start >= vmf->vma->vm_start && start + size <= vmf->vma->vm_end;
}

/**
 * mmp_fate_of - determine the fate that an answer would have had
 * @vmf: the fault
 * @site: where in the fault it was asked for
 * @order: the answer; comes back as what fits into the VMA
 *
 * A fault asks for PMD size first, while there is no page table. With another
 * answer, or a page table that is empty, it asks again. Swap-in would
 * not change.
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
