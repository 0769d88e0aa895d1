// SPDX-License-Identifier: GPL-2.0
/*
 * The rule of adaptive: a large folio where memory nearby has been used in full.
 *
 * The page table is the memory of this policy. Programs fill memory densely, but seldom in
 * order: an allocator opens many areas and fills them in turn. So the rule does not ask whether
 * the fault extends a run of pages. It looks at blocks of 64 kB nearby: the one before, the one
 * after, and one farther on each side. If one of them is full, the block of the fault will be
 * full one day as well. Where none is full yet, groups of 16 kB decide about a small folio.
 *
 * Larger folios take larger examples. Beyond 64 kB, a folio needs a neighbour
 * of its own size that looks full, so sizes grow by doubling, and with the process:
 * the last folio may stay empty. There is no state to be copied by fork, mremap, split or
 * merge, and threads in areas of their own do not disturb each other.
 *
 * Large folios hide whether their pages are used. So a folio's outermost pages are mapped as
 * not accessed (see &mm_policy_ops.anon_mapped). An unused one means "not yet" or "never"; no
 * more blocks may have one than are full. Waste that is seen costs credit (waste.h). PMD
 * mappings have one accessed bit for all, so now and then such a block is made of smaller
 * folios, which tell.
 *
 * The idea, to raise a VMA's order when faults extend a contiguous range and
 * to lower it when they do not, is an open question of "variable-order, large
 * folios for anonymous memory", RFC v2 (Ryan Roberts, 2023).
 */
#include <linux/log2.h>
#include <linux/mm.h>

#include "judge.h"

/* The possible example of 2^@order pages that is @distance such examples from the fault. */
static __always_inline enum mmp_page
anon_order_example(const struct mmp_place *place, long distance, unsigned int order,
		   unsigned int least)
{
	const unsigned long size = PAGE_SIZE << order;
	unsigned long addr = (place->addr & -size) + distance * size;
	enum mmp_page leaf;
	const pte_t *pte;

	if (size > place->size || addr - place->start > place->size - size)
		return MMP_EMPTY;
	pte = mmp_entries(place, addr, &leaf);
	if (!pte)
		return leaf == MMP_USED ? MMP_USED : MMP_EMPTY;
	if (order == GROUP_ORDER)
		return mmp_waste_seen(group_of(pte), pte, order);
	if (order == BLOCK_ORDER)
		return mmp_waste_seen(block_of(pte, least), pte, order);
	return area_of(pte, 1U << order, least);
}

/*
 * The distance to look at for @distance. From the middle of a page table the rule only looks
 * into that table, which for this begins anew where it ends.
 */
static __always_inline long within_reach(const struct mmp_place *place, long distance,
					 unsigned int order)
{
	const long here = pte_index(place->addr) >> order;

	if (!in_the_middle(place->addr))
		return distance;
	return ((here + distance) & ((PTRS_PER_PTE >> order) - 1)) - here;
}

/*
 * How many examples of @order are nearby, below 0 if more pieces have unused pages. Of blocks,
 * the first one that outweighs those decides.
 */
static __always_inline int anon_order_examples(const struct mmp_place *place,
					       unsigned int order, unsigned int least)
{
	const s8 *const places = order == BLOCK_ORDER ? block_places : group_places;
	int used = 0, unused = 0;
	unsigned int i;

	for (i = 0; i < PLACES; i++) {
		const long distance = within_reach(place, places[i], order);
		const enum mmp_page page = anon_order_example(place, distance, order, least);

		used += page == MMP_USED;
		unused += page == MMP_MAPPED;
		if (order == BLOCK_ORDER && used > unused)
			return used;
	}
	return used >= unused ? used : -unused;
}

/* Is there an example of @order right before or right after the fault? */
static bool anon_order_beside(const struct mmp_place *place, unsigned int order,
			      unsigned int least)
{
	return anon_order_example(place, -1, order, least) == MMP_USED ||
	       anon_order_example(place, 1, order, least) == MMP_USED;
}

/*
 * The largest order of which min_folios fit into the process's anonymous memory, at least
 * 64 kB: this bounds what one folio that is never filled wastes.
 */
static u32 anon_order_share(const struct vm_fault *vmf, const u32 *knob)
{
	const unsigned long pages = get_mm_counter(vmf->vma->vm_mm, MM_ANONPAGES);

	return max(ilog2(pages / knob[MIN_FOLIOS] | 1), BLOCK_ORDER);
}

/* Is the VMA large enough for a group around the fault, and is none of its pages there? */
bool anon_order_fits(const struct mmp_place *place)
{
	unsigned long offset = (place->addr & -(PAGE_SIZE * GROUP)) - place->start;
	const pte_t *pte = place->here;

	if (offset >= place->size || place->size - offset < PAGE_SIZE * GROUP)
		return false;
	if (!pte)
		return true;
	return !group_has_page(pte - pte_index(place->addr) % GROUP);
}

/*
 * A block is an example. The answer is the largest order up to max_order that has a neighbouring
 * example of its own size, or else the order of a block.
 */
noinline struct mmp_decision anon_order_grown(const struct vm_fault *vmf,
					      const struct mmp_place *place, const u32 *knob)
{
	u32 order = min(knob[MAX_ORDER], MMP_MAX_ORDER - 1U);

	if (order > BLOCK_ORDER)
		order = min(order, anon_order_share(vmf, knob));
	while (order > BLOCK_ORDER &&
	       !anon_order_beside(place, order, knob[MIN_USED_PAGES]))
		order--;
	return anon_order_run(vmf, order);
}

/* The rule for a fault that has no page table yet, where 2 MB are allowed. */
noinline struct mmp_decision anon_order_huge(const struct vm_fault *vmf, const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);
	const u32 blocks = knob[PROBE_BLOCKS];

	if (anon_order_share(vmf, knob) < MMP_MAX_ORDER ||
	    !anon_order_beside(&place, MMP_MAX_ORDER, knob[MIN_USED_PAGES]))
		return anon_order_small(MMP_NO_NEIGHBOUR);
	/* Is this one of the blocks to be made of smaller folios? */
	if (blocks && !((place.addr >> PMD_SHIFT) % blocks))
		return (struct mmp_decision){ MMP_PROBE, MMP_MAX_ORDER - 1 };
	return anon_order_run(vmf, MMP_MAX_ORDER);
}

/* The rule: blocks decide, or else groups do. */
noinline struct mmp_decision anon_order_judge(const struct vm_fault *vmf, const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);
	const u32 least = knob[MIN_USED_PAGES];
	int blocks, groups;

	mmp_credit_begin(vmf->vma->vm_mm);
	if (!anon_order_fits(&place))
		return anon_order_none(vmf, MMP_NO_ROOM);
	blocks = anon_order_examples(&place, BLOCK_ORDER, least);
	if (blocks > 0)
		return anon_order_grown(vmf, &place, knob);
	groups = anon_order_examples(&place, GROUP_ORDER, least);
	if (groups <= 0 || !mmp_credit_left())
		return anon_order_none(vmf, blocks || groups > 0 ? MMP_SPARSE_NEIGHBOUR :
								   MMP_NO_NEIGHBOUR);
	return anon_order_run(vmf, min(knob[MAX_ORDER],
				       groups > 1 ? GROUP_ORDER + 1U : GROUP_ORDER));
}
