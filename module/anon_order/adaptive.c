// SPDX-License-Identifier: GPL-2.0
/*
 * anon_order/adaptive: a large folio where memory nearby has been used in full.
 *
 * The page table is the memory of this policy. Programs fill memory densely,
 * but seldom in order: an allocator opens many areas and fills them in turn. So
 * this does not ask whether the fault extends a run of pages. It looks at
 * blocks of 64 kB nearby: the one before, the one after, and two further back.
 * If one of them is full, the block of the fault will be full one day as well.
 * Where none is full yet, the same blocks of 16 kB decide about a small folio.
 *
 * Larger folios take larger examples. Beyond 64 kB, a folio needs a neighbour
 * of its own size that looks full, so sizes grow by doubling. There is no state
 * to be copied by fork, mremap, split or merge, and threads that each work in
 * an area of their own do not disturb each other.
 *
 * Large folios hide whether their pages are used. So a folio's outermost pages
 * are mapped as not accessed (see &mm_policy_ops.anon_mapped). An unused one
 * means "not yet" or "never"; no more blocks may have one than are full. PMD
 * mappings have one accessed bit for all, so now and then such a block is made
 * of smaller folios, which tell.
 *
 * The idea, to raise a VMA's order when faults extend a contiguous range and
 * to lower it when they do not, is an open question of "variable-order, large
 * folios for anonymous memory", RFC v2 (Ryan Roberts, 2023).
 */
#include <linux/bitops.h>

#include "anon_order.h"
#include "glance.h"
#include "../mmpolicy.h"

/* Where examples are looked for, in their sizes, the best place first. */
static const s8 places[] = { -1, 1, -4, -2 };

/* For blocks without the last one: few of them are better than the others. */
#define BLOCK_PLACES	3
#define GROUP_PLACES	4

enum { MAX_ORDER, MIN_USED_PAGES, PROBE_BLOCKS };

static struct mmp_knob knobs[] = {
	[MAX_ORDER] =
		MMP_KNOB(max_order, MMP_MIN_ORDER, MMP_MAX_ORDER, 4, MMP_ORDER,
			 "the largest order"),
	[MIN_USED_PAGES] =
		MMP_KNOB(min_used_pages, 8, 16, 14, "pages",
			 "so many of 16 pages must have been used to be an example"),
	[PROBE_BLOCKS] =
		MMP_KNOB(probe_blocks, 0, 1024, 16, "blocks of PMD size",
			 "one in so many blocks is made of smaller folios; 0: none"),
};

/* The example of 2^@order pages that is @distance such examples away. */
static __always_inline enum mmp_page
anon_order_example(const struct mmp_place *place, long distance,
		   unsigned int order, unsigned int least)
{
	const unsigned long size = PAGE_SIZE << order;
	unsigned long addr = (place->addr & -size) + distance * size;
	enum mmp_page leaf;
	const pte_t *pte;

	if (size > place->size || addr - place->start > place->size - size)
		return MMP_EMPTY;
	pte = mmp_entries(place, addr, &leaf);
	if (!pte)
		return leaf;
	if (order == GROUP_ORDER)
		return group_of(pte);
	if (order == BLOCK_ORDER)
		return block_of(pte, least);
	return area_of(pte, 1U << order, least);
}

/* From the middle of a page table only that table is looked into. */
static __always_inline bool reached(const struct mmp_place *place, long distance,
				    unsigned int order)
{
	return !in_the_middle(place->addr) ||
	       distance + (long)(pte_index(place->addr) >> order) >= 0;
}

/* How many examples nearby were used; below 0 if more of them were not. */
static __always_inline int anon_order_examples(const struct mmp_place *place,
					       unsigned int order,
					       unsigned int least)
{
	const unsigned int nr = order == BLOCK_ORDER ? BLOCK_PLACES :
						       GROUP_PLACES;
	int used = 0, unused = 0;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		enum mmp_page page;

		if (!reached(place, places[i], order))
			continue;
		page = anon_order_example(place, places[i], order, least);
		used += page == MMP_USED;
		unused += page == MMP_MAPPED;
		if (order == BLOCK_ORDER && used > unused)
			return used;
	}
	return used >= unused ? used : -unused;
}

/* For large folios: is there an example beside the fault? */
static bool anon_order_beside(const struct mmp_place *place, unsigned int order,
			      unsigned int least)
{
	return anon_order_example(place, -1, order, least) == MMP_USED ||
	       anon_order_example(place, 1, order, least) == MMP_USED;
}

static __always_inline struct mmp_decision anon_order_small(enum mmp_reason reason)
{
	return (struct mmp_decision){ 0, reason };
}

/* For a fault without a page table. */
static struct mmp_decision anon_order_huge(const struct mmp_place *place, const u32 *knob)
{
	const u32 blocks = knob[PROBE_BLOCKS];

	if (knob[MAX_ORDER] < MMP_MAX_ORDER)
		return anon_order_small(MMP_CAP);
	if (!anon_order_beside(place, MMP_MAX_ORDER, knob[MIN_USED_PAGES]))
		return anon_order_small(MMP_ALONE);
	/* Is this one of the blocks to be made of smaller folios? */
	if (blocks && !((place->addr >> PMD_SHIFT) % blocks))
		return (struct mmp_decision){ MMP_MAX_ORDER - 1, MMP_PROBE };
	return (struct mmp_decision){ MMP_MAX_ORDER, MMP_RUN };
}

/* Does the smallest folio fit around the fault? */
static bool anon_order_fits(const struct mmp_place *place)
{
	unsigned long offset = (place->addr & -(PAGE_SIZE * GROUP)) - place->start;
	const pte_t *pte = place->here;

	if (offset >= place->size || place->size - offset < PAGE_SIZE * GROUP)
		return false;
	if (!pte)
		return true;
	return !any_there(pte - pte_index(place->addr) % GROUP);
}

/* With an example of a block: what larger ones there are. */
static noinline struct mmp_decision anon_order_grown(const struct mmp_place *place,
						     const u32 *knob)
{
	u32 order = min(knob[MAX_ORDER], MMP_MAX_ORDER - 1U);

	while (order > BLOCK_ORDER &&
	       !anon_order_beside(place, order, knob[MIN_USED_PAGES]))
		order--;
	return (struct mmp_decision){ order, MMP_RUN };
}

/* The long way: all examples nearby. */
static noinline struct mmp_decision anon_order_judge(const struct vm_fault *vmf,
						     const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);
	const u32 least = knob[MIN_USED_PAGES];
	int blocks, groups;

	if (!anon_order_fits(&place))
		return anon_order_small(MMP_INSIDE);
	blocks = anon_order_examples(&place, BLOCK_ORDER, least);
	if (blocks > 0)
		return anon_order_grown(&place, knob);
	groups = anon_order_examples(&place, GROUP_ORDER, least);
	if (groups <= 0)
		return anon_order_small(blocks ? MMP_UNUSED : MMP_ALONE);
	return (struct mmp_decision){
		min(knob[MAX_ORDER], groups > 1 ? GROUP_ORDER + 1U : GROUP_ORDER), MMP_RUN
	};
}

/* In the middle of a table, at a third glance: may any be an example? */
static noinline struct mmp_decision anon_order_closest(const struct vm_fault *vmf,
						       const pte_t *table,
						       const u32 *knob)
{
	const unsigned long index = pte_index(vmf->address);
	const pte_t *const group = table + (index & -GROUP);
	const pte_t *const block = table + (index & -BLOCK);

	if (is_plain(block + BLOCK) && pte_none(__pte(glance(block - 1))) &&
	    vmf->vma->vm_end - vmf->address >= 2 * BLOCK_BYTES &&
	    vmf->address - vmf->vma->vm_start >= 2 * BLOCK_BYTES &&
	    knob[MAX_ORDER] <= BLOCK_ORDER)
		return (struct mmp_decision){ knob[MAX_ORDER], MMP_RUN };
	if (!pte_present(__pte(ends(block - BLOCK) | ends(block + BLOCK) |
			       ends(table + farthest(index)) |
			       whole(group - GROUP) | whole(group + GROUP) |
			       whole(group - 2 * GROUP) | whole(group - 4 * GROUP))))
		return anon_order_small(MMP_ALONE);
	return anon_order_judge(vmf, knob);
}

/* These are functions of their own for the sake of those that return before. */
static noinline struct mmp_decision anon_order_closer(const struct vm_fault *vmf,
						      const pte_t *table,
						      const u32 *knob)
{
	if (any_there(table + (pte_index(vmf->address) & -GROUP)))
		return anon_order_small(MMP_INSIDE);
	if (!anon_order_some(table, pte_index(vmf->address)))
		return anon_order_small(MMP_ALONE);
	return anon_order_closest(vmf, table, knob);
}

/* Behind a page that is used. */
static noinline struct mmp_decision anon_order_behind(const struct vm_fault *vmf,
						      const pte_t *table,
						      const u32 *knob)
{
	const pte_t *const block = table + (pte_index(vmf->address) & -BLOCK);

	if (likely(is_plain(block - BLOCK) &&
		   vmf->address - vmf->vma->vm_start >= 2 * BLOCK_BYTES &&
		   knob[MAX_ORDER] <= BLOCK_ORDER))
		return (struct mmp_decision){ knob[MAX_ORDER], MMP_RUN };
	return anon_order_closer(vmf, table, knob);
}

/* Behind a block that is full, at the edge of a page table. */
static __always_inline bool anon_order_behind_plain(const struct mmp_place *place)
{
	const unsigned long before = (place->addr & -BLOCK_BYTES) - BLOCK_BYTES;
	enum mmp_page leaf;
	const pte_t *pte;

	if (before - place->start >= place->size)
		return false;
	pte = mmp_entries(place, before, &leaf);
	return pte && is_plain(pte);
}

/* The outermost blocks of a page table, and where there is none. */
static noinline struct mmp_decision anon_order_edge(const struct vm_fault *vmf,
						    enum mm_policy_site site,
						    const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);

	if (site == MM_POLICY_PMD)
		return anon_order_huge(&place, knob);
	if (anon_order_behind_plain(&place))
		return anon_order_grown(&place, knob);
	if (place.here && !(pte_index(place.addr) < BLOCK ? anon_order_some_first(&place) :
							    anon_order_some_last(&place)))
		return anon_order_small(MMP_ALONE);
	return anon_order_judge(vmf, knob);
}

/* The short way, for sparse access. */
static struct mmp_decision anon_order_adaptive(const struct vm_fault *vmf,
					       enum mm_policy_site site,
					       const u32 *knob)
{
	pmd_t pmd = pmdp_get_lockless(vmf->pmd);
	unsigned long index = pte_index(vmf->address);
	const pte_t *table;

	if (unlikely(!mmp_is_table(pmd) || !in_the_middle(vmf->address)))
		return anon_order_edge(vmf, site, knob);
	table = mmp_table(pmd);
	if (mmp_bits_used(glance(table + (index & -BLOCK) - 1)))
		return anon_order_behind(vmf, table, knob);
	if (likely(!anon_order_any(table, index)))
		return anon_order_small(MMP_ALONE);
	return anon_order_closer(vmf, table, knob);
}

struct mmp_policy mmp_policy_anon_order_adaptive = {
	.name = "adaptive",
	.point = MM_POLICY_ANON_ORDER,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.witness = true,
	.anon_order = anon_order_adaptive,
};
