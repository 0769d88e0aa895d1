// SPDX-License-Identifier: GPL-2.0
/*
 * The rule of adaptive: request a large folio if memory near the fault has been
 * used in full.
 *
 * The policy keeps no state of its own; it reads page table entries near the
 * fault. Programs fill memory densely, but seldom in order: an allocator opens
 * many areas and fills them in turn. So the rule does not ask whether the fault
 * extends a run of pages. It examines 64 kB blocks nearby: the one before, the
 * one after, and one farther away on each side. If one of them is fully used,
 * the fault's block will probably be used in full too. If none is, groups of 16
 * kB decide about a small folio.
 *
 * A folio larger than 64 kB needs a neighbour of its own size that looks fully
 * used. So sizes grow step by step as the process grows, and at most the last
 * folio stays empty. Without state of its own, the policy has nothing to copy
 * in fork, mremap, split or merge, and threads in separate areas do not disturb
 * each other.
 *
 * A large folio hides whether each page is used. So the module clears the
 * accessed bit of its first and last page when it is mapped (see
 * &mm_policy_ops.anon_mapped). A clear bit later means "not used yet" or "never
 * used"; the number of such blocks must not exceed the number of fully used
 * ones. Waste that the rule sees costs credit (waste.h). A PMD mapping has a
 * single accessed bit, so one in probe_blocks huge blocks is made of smaller
 * folios, whose bits show use.
 *
 * "variable-order, large folios for anonymous memory", RFC v2 (Ryan Roberts,
 * 2023), leaves open whether to raise a VMA's order when faults extend a
 * contiguous range, and to lower it otherwise; this policy is one answer.
 */
#include <linux/log2.h>
#include <linux/mm.h>

#include "judge.h"

/*
 * A quarter of min_folios is enough for a folio of 2 MB: with the bound that
 * smaller folios have, only 73 % of a process of 256 MB would be in 2 MB folios.
 */
#define HUGE_SOONER		4

/*
 * Classifies the aligned area of 2^@order pages that is @distance areas away
 * from the fault's own area. An area that was used in full (%MMP_USED) is an
 * "example" for the fault.
 */
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
 * Wraps @distance (in areas of 2^@order pages) around the ends of the page
 * table, so that a fault in the middle of a page table needs no other table.
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
 * Counts areas of 2^@order pages near the fault that were used in full. If more
 * areas have unused pages, returns the number of areas with unused pages
 * instead, negated. For 64 kB blocks, it stops as soon as used blocks are in
 * the majority.
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

/*
 * Returns true if the area of 2^@order pages right before or right after the
 * fault was used in full.
 */
static bool anon_order_beside(const struct mmp_place *place, unsigned int order,
			      unsigned int least)
{
	return anon_order_example(place, -1, order, least) == MMP_USED ||
	       anon_order_example(place, 1, order, least) == MMP_USED;
}

/* Returns the number of anonymous pages that the process has. */
static unsigned long anon_order_pages(const struct vm_fault *vmf)
{
	return get_mm_counter(vmf->vma->vm_mm, MM_ANONPAGES);
}

/*
 * Returns the largest order of which min_folios folios fit into the process's
 * anonymous memory, at least the order of 64 kB. This bounds the waste of one
 * folio that is never filled.
 */
static u32 anon_order_share(const struct vm_fault *vmf, const u32 *knob)
{
	return max(ilog2(anon_order_pages(vmf) / knob[MIN_FOLIOS] | 1), BLOCK_ORDER);
}

/*
 * Returns true if a 16 kB group around the fault lies within the VMA and none
 * of its pages is present.
 */
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
 * Answers a fault near a fully used block: the largest order up to max_order
 * that has a used neighbour of its own size, or else the order of a 64 kB
 * block.
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

/*
 * Answers a fault without a page table in a VMA that allows 2 MB folios: 2 MB
 * if the 2 MB right before or after were used in full and the process has
 * enough anonymous memory, otherwise order 0.
 */
noinline struct mmp_decision anon_order_huge(const struct vm_fault *vmf, const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);
	const u32 blocks = knob[PROBE_BLOCKS];

	if (anon_order_pages(vmf) < knob[MIN_FOLIOS] * (PTRS_PER_PTE / HUGE_SOONER) ||
	    !anon_order_beside(&place, MMP_MAX_ORDER, knob[MIN_USED_PAGES]))
		return anon_order_small(MMP_NO_NEIGHBOUR);
	/*
	 * One PMD-sized block in probe_blocks gets smaller folios, as their
	 * accessed bits show how much memory is used.
	 */
	if (blocks && !((place.addr >> PMD_SHIFT) % blocks))
		return (struct mmp_decision){ MMP_PROBE, MMP_MAX_ORDER - 1 };
	return anon_order_run(vmf, MMP_MAX_ORDER);
}

/*
 * Answers a fault by the rule. If most 64 kB blocks nearby that show their use
 * were used in full, requests 64 kB or more. Otherwise the 16 kB groups decide
 * between 16 or 32 kB and order 0.
 */
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
