// SPDX-License-Identifier: GPL-2.0
/*
 * anon_order/adaptive: a large folio where memory nearby has been used in full.
 *
 * The page table is the memory of this policy. Programs fill memory densely,
 * but seldom in order: an allocator opens many areas and fills them in turn. So
 * this does not ask whether the fault extends a run of pages. It looks at
 * blocks of 64 kB nearby: the one before, the one after, and one farther on each side.
 * If one of them is full, the block of the fault will be full one day as well.
 * Where none is full yet, blocks of 16 kB decide about a small folio.
 *
 * Larger folios take larger examples. Beyond 64 kB, a folio needs a neighbour
 * of its own size that looks full, so sizes grow by doubling, and with the process:
 * the last folio of an area may stay empty. There is no state to be copied by fork,
 * mremap, split or merge, and threads that each work in an area of their own do not
 * disturb each other. After many small folios only some faults are looked at (defer.h).
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
#include <linux/log2.h>
#include <linux/mm.h>

#include "anon_order.h"
#include "defer.h"
#include "glance.h"
#include "../mmpolicy.h"

/* Where examples are looked for, in their sizes, the best place first. */
#define PLACES	4
static const s8 block_places[PLACES] = { -1, 1, -4, 4 };
static const s8 group_places[PLACES] = { -1, 1, -4, -2 };

enum { MAX_ORDER, MIN_USED_PAGES, PROBE_BLOCKS, MIN_FOLIOS };

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
	[MIN_FOLIOS] =
		MMP_KNOB(min_folios, 1, 1024, 32, "folios",
			 "so many beyond 64 kB must fit into the memory of the process"),
};

static __always_inline struct mmp_decision anon_order_small(enum mmp_reason reason)
{
	return (struct mmp_decision){ reason, 0 };
}

/* As a fault gets that was looked at. */
static __always_inline struct mmp_decision anon_order_none(const struct vm_fault *vmf,
							   enum mmp_reason reason)
{
	mmp_defer_sooner(vmf->vma->vm_mm, reason == MMP_INSIDE);
	return anon_order_small(reason);
}

static __always_inline struct mmp_decision anon_order_run(u32 order)
{
	mmp_defer_later(order);
	return (struct mmp_decision){ MMP_RUN, order };
}

/* The example of 2^@order pages that is @distance such examples away. */
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
		return leaf;
	if (order == GROUP_ORDER)
		return group_of(pte);
	if (order == BLOCK_ORDER)
		return block_of(pte, least);
	return area_of(pte, 1U << order, least);
}

/* From the middle of a page table only that table is looked into, as far_block() does. */
static __always_inline long within_reach(const struct mmp_place *place, long distance,
					 unsigned int order)
{
	const long here = pte_index(place->addr) >> order;

	if (!in_the_middle(place->addr))
		return distance;
	return ((here + distance) & ((PTRS_PER_PTE >> order) - 1)) - here;
}

/* How many examples nearby were used; below 0 if more of them were not. */
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

/* For large folios: is there an example beside the fault? */
static bool anon_order_beside(const struct mmp_place *place, unsigned int order,
			      unsigned int least)
{
	return anon_order_example(place, -1, order, least) == MMP_USED ||
	       anon_order_example(place, 1, order, least) == MMP_USED;
}

/* Beyond a block, a folio that is never filled is but a part of its process's memory. */
static u32 anon_order_share(const struct vm_fault *vmf, const u32 *knob)
{
	const unsigned long pages = get_mm_counter(vmf->vma->vm_mm, MM_ANONPAGES);

	return max(ilog2(pages / knob[MIN_FOLIOS] | 1), BLOCK_ORDER);
}

/* For a fault without a page table. */
static noinline struct mmp_decision anon_order_huge(const struct vm_fault *vmf, const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);
	const u32 blocks = knob[PROBE_BLOCKS];

	if (anon_order_share(vmf, knob) < MMP_MAX_ORDER ||
	    !anon_order_beside(&place, MMP_MAX_ORDER, knob[MIN_USED_PAGES]))
		return anon_order_small(MMP_ALONE);
	/* Is this one of the blocks to be made of smaller folios? */
	if (blocks && !((place.addr >> PMD_SHIFT) % blocks))
		return (struct mmp_decision){ MMP_PROBE, MMP_MAX_ORDER - 1 };
	return anon_order_run(MMP_MAX_ORDER);
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
static noinline struct mmp_decision anon_order_grown(const struct vm_fault *vmf,
						     const struct mmp_place *place,
						     const u32 *knob)
{
	u32 order = min(knob[MAX_ORDER], MMP_MAX_ORDER - 1U);

	if (order > BLOCK_ORDER)
		order = min(order, anon_order_share(vmf, knob));
	while (order > BLOCK_ORDER &&
	       !anon_order_beside(place, order, knob[MIN_USED_PAGES]))
		order--;
	return anon_order_run(order);
}

/* The long way: all examples nearby. */
static noinline struct mmp_decision anon_order_judge(const struct vm_fault *vmf,
						     const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);
	const u32 least = knob[MIN_USED_PAGES];
	int blocks, groups;

	if (!anon_order_fits(&place))
		return anon_order_none(vmf, MMP_INSIDE);
	blocks = anon_order_examples(&place, BLOCK_ORDER, least);
	if (blocks > 0)
		return anon_order_grown(vmf, &place, knob);
	groups = anon_order_examples(&place, GROUP_ORDER, least);
	if (groups <= 0)
		return anon_order_none(vmf, blocks ? MMP_UNUSED : MMP_ALONE);
	return anon_order_run(min(knob[MAX_ORDER], groups > 1 ? GROUP_ORDER + 1U : GROUP_ORDER));
}

/* In the middle of a table, at a third glance: may any be an example? */
static noinline struct mmp_decision anon_order_closest(const struct vm_fault *vmf,
						       const pte_t *table, const u32 *knob)
{
	const unsigned long index = pte_index(vmf->address);
	const pte_t *const group = table + (index & -GROUP);
	const pte_t *const block = table + (index & -BLOCK);

	if (!mmp_bits_present(ends(block - BLOCK) | ends(block + BLOCK) |
			      ends(table + far_block(index, -4)) |
			      ends(table + far_block(index, 4)) |
			      whole(group - GROUP) | whole(group + GROUP) |
			      whole(group - 2 * GROUP) | whole(group - 4 * GROUP)))
		return anon_order_none(vmf, MMP_ALONE);
	return anon_order_judge(vmf, knob);
}

/* A stream, or so it seems: the block before is full. */
static __always_inline bool anon_order_streams(const struct vm_fault *vmf, const pte_t *block,
					       const u32 *knob)
{
	return is_plain(block - BLOCK) &&
	       vmf->address - vmf->vma->vm_start >= 2 * BLOCK_BYTES &&
	       knob[MAX_ORDER] <= BLOCK_ORDER;
}

/* The same downwards: it is the block behind. */
static __always_inline bool anon_order_streams_down(const struct vm_fault *vmf,
						    const pte_t *block, const u32 *knob)
{
	return mmp_bits_used(glance(block + BLOCK)) && is_plain(block + BLOCK) &&
	       vmf->vma->vm_end - vmf->address >= 2 * BLOCK_BYTES &&
	       vmf->address - vmf->vma->vm_start >= 2 * BLOCK_BYTES &&
	       knob[MAX_ORDER] <= BLOCK_ORDER;
}

/* After many small folios: one that does not fit would end nothing. */
static noinline struct mmp_decision anon_order_begins(const struct vm_fault *vmf,
						      const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);

	if (!anon_order_fits(&place))
		return anon_order_none(vmf, MMP_INSIDE);
	return anon_order_run(knob[MAX_ORDER]);
}

static __always_inline struct mmp_decision anon_order_goes_on(const struct vm_fault *vmf,
							      const u32 *knob)
{
	if (mmp_many_small())
		return anon_order_begins(vmf, knob);
	return (struct mmp_decision){ MMP_RUN, knob[MAX_ORDER] };
}

/* These are functions of their own for the sake of those that return before. */
static noinline struct mmp_decision anon_order_close(const struct vm_fault *vmf,
						     const pte_t *block, const u32 *knob)
{
	const unsigned long index = pte_index(vmf->address);
	const pte_t *const table = block - (index & -BLOCK);

	if (anon_order_streams_down(vmf, block, knob) && !glance(block - 1))
		return anon_order_goes_on(vmf, knob);
	if (any_there(table + (index & -GROUP)))
		return anon_order_none(vmf, MMP_INSIDE);
	if (!anon_order_any(table, index, true))
		return anon_order_none(vmf, MMP_ALONE);
	return anon_order_closest(vmf, table, knob);
}

/* In @block: streams before all others. */
static noinline struct mmp_decision anon_order_closer(const struct vm_fault *vmf,
						      const pte_t *block, const u32 *knob)
{
	if (anon_order_streams(vmf, block, knob))
		return anon_order_goes_on(vmf, knob);
	if (knob[MAX_ORDER] > BLOCK_ORDER && is_plain(block - BLOCK))
		return anon_order_judge(vmf, knob);
	return anon_order_close(vmf, block, knob);
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

/* In one of the outermost blocks of a page table, where there may be an example. */
static noinline struct mmp_decision anon_order_edge_closer(const struct vm_fault *vmf,
							   const pte_t *table, const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);

	if (anon_order_behind_plain(&place))
		return anon_order_grown(vmf, &place, knob);
	if (table && !anon_order_any_edge(vmf, table, true))
		return anon_order_none(vmf, MMP_ALONE);
	return anon_order_judge(vmf, knob);
}

/* The outermost blocks of a page table, and where there is none. */
static noinline struct mmp_decision anon_order_edge(const struct vm_fault *vmf,
						    enum mm_policy_site site,
						    const u32 *knob)
{
	const unsigned long bits = mmp_table_bits(pmdp_get_lockless(vmf->pmd));
	const pte_t *table;

	if (site == MM_POLICY_PMD)
		return knob[MAX_ORDER] < MMP_MAX_ORDER ? anon_order_small(MMP_CAP) :
							 anon_order_huge(vmf, knob);
	if (unlikely(!mmp_bits_table(bits)))
		return anon_order_edge_closer(vmf, NULL, knob);
	table = mmp_table_at(bits);
	if (pte_index(vmf->address) < BLOCK ?
	    anon_order_streams_down(vmf, table, knob) :
	    anon_order_streams(vmf, table + PTRS_PER_PTE - BLOCK, knob))
		return anon_order_goes_on(vmf, knob);
	if (!anon_order_any_edge(vmf, table, false))
		return anon_order_none(vmf, MMP_ALONE);
	return anon_order_edge_closer(vmf, table, knob);
}

static noinline struct mmp_decision anon_order_written(const pte_t *table, unsigned long index,
						       const u32 *knob)
{
	u32 order = min(knob[MAX_ORDER], MMP_MAX_ORDER - 1U);

	if (!written_beside(table, index, BLOCK_ORDER, knob[MIN_USED_PAGES]))
		return anon_order_small(MMP_ALONE);
	while (order > BLOCK_ORDER &&
	       !written_beside(table, index, order, knob[MIN_USED_PAGES]))
		order--;
	return (struct mmp_decision){ MMP_RUN, order };
}

/* At a glance: has the page before the block been written, or the one behind it? */
static noinline struct mmp_decision anon_order_copy(const struct vm_fault *vmf, const u32 *knob)
{
	const pmd_t pmd = pmdp_get_lockless(vmf->pmd);
	const unsigned long first = pte_index(vmf->address) & -BLOCK;
	const pte_t *table;
	unsigned long bits;

	if (!mmp_is_table(pmd))
		return anon_order_small(MMP_ALONE);
	table = mmp_table(pmd);
	bits = glance(table + (first ? first - 1 : BLOCK));
	bits |= glance(table + (first < PTRS_PER_PTE - BLOCK ? first + BLOCK : first - 1));
	if (likely(!mmp_bits_writable(bits)))
		return anon_order_small(MMP_ALONE);
	return anon_order_written(table, first, knob);
}

/* The short way, for sparse access. */
static struct mmp_decision anon_order_adaptive(const struct vm_fault *vmf,
					       enum mm_policy_site site,
					       const u32 *knob)
{
	const pte_t *table;
	unsigned long bits;

	if (mmp_is_copy(site))
		return anon_order_copy(vmf, knob);
	if (mmp_deferred(vmf->vma->vm_mm) && site != MM_POLICY_PMD)
		return anon_order_small(MMP_DEFERRED);
	bits = mmp_table_bits(pmdp_get_lockless(vmf->pmd));
	if (unlikely(!mmp_bits_table(bits) || !in_the_middle(vmf->address)))
		return anon_order_edge(vmf, site, knob);
	table = mmp_table_at(bits);
	if (likely(!anon_order_any(table, vmf->address >> PAGE_SHIFT, false)))
		return anon_order_none(vmf, MMP_ALONE);
	return anon_order_closer(vmf, table + (pte_index(vmf->address) & -BLOCK), knob);
}

struct mmp_policy mmp_policy_anon_order_adaptive = {
	.name = "adaptive",
	.point = MM_POLICY_ANON_ORDER,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.witness = true,
	.anon_order = anon_order_adaptive,
};
