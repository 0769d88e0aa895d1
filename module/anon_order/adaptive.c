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
#include "../mmpolicy.h"

#define GROUP_ORDER	2
#define BLOCK_ORDER	4
#define GROUP		4	/* pages */
#define BLOCK		16

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

/* Is the block of a fault neither the first nor the last of its page table? */
static __always_inline bool in_the_middle(unsigned long addr)
{
	return pte_index(addr) - BLOCK < PTRS_PER_PTE - 2 * BLOCK;
}

/* The bits of an entry, at a glance: an old value, or half of one, will do. */
static __always_inline unsigned long glance(const pte_t *pte)
{
	/* Others map, age and unmap pages meanwhile. */
	return data_race(pte_val(*pte));
}

/* The bits that entries have in common, four by four. */
static __always_inline unsigned long common(const pte_t *pte, unsigned int nr)
{
	unsigned long bits = ~0UL;

	for (; nr; nr -= 4, pte += 4)
		bits &= glance(pte) & glance(pte + 1) & glance(pte + 2) &
			glance(pte + 3);
	return bits;
}

/*
 * As common(), of both ends of a block, and of a page beside one of them: no
 * regular distance between small records hits two neighbours.
 */
static __always_inline unsigned long ends(const pte_t *pte)
{
	return glance(pte) & glance(pte + BLOCK - 1) &
	       (glance(pte + 1) | glance(pte + BLOCK - 2));
}

static __always_inline bool say_used(unsigned long bits)
{
	return pte_present(__pte(bits)) && pte_young(__pte(bits));
}

/* Pages in a row: how many there are, and how many of them were used. */
struct count {
	unsigned int there, used;
};

static struct count count_pages(const pte_t *pte, unsigned int nr)
{
	struct count count = {};

	for (; nr--; pte++) {
		enum mmp_page page = mmp_page_of(mmp_pte(pte, 0));

		count.there += page != MMP_EMPTY;
		count.used += page == MMP_USED;
	}
	return count;
}

/*
 * Examples: rows of pages that were used in full (%MMP_USED), that were
 * allocated and not used (%MMP_MAPPED), or that tell nothing (%MMP_EMPTY).
 */
static enum mmp_page block_of(const pte_t *pte, unsigned int least)
{
	struct count count;

	if (!pte_present(__pte(ends(pte))))
		return MMP_EMPTY;
	if (say_used(common(pte, BLOCK)))
		return MMP_USED;
	count = count_pages(pte, BLOCK);
	if (count.used < count.there)
		return MMP_MAPPED;
	return count.used >= least ? MMP_USED : MMP_EMPTY;
}

/* Of so few pages each one counts, as records may be as small. */
static enum mmp_page group_of(const pte_t *pte)
{
	if (say_used(common(pte, GROUP)))
		return MMP_USED;
	return count_pages(pte, GROUP).there ? MMP_MAPPED : MMP_EMPTY;
}

/* Of many pages, a block in the middle and some that are at odd distances. */
static enum mmp_page area_of(const pte_t *pte, unsigned int nr,
			     unsigned int least)
{
	const unsigned int third = nr * 341 >> 10;
	unsigned long bits = glance(pte) & glance(pte + nr - 1);

	bits &= glance(pte + third) & glance(pte + nr - 1 - third);
	if (!say_used(bits))
		return MMP_EMPTY;
	return block_of(pte + nr / 2, least);
}

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

/* Is the last page there of an example @distance away? */
static bool anon_order_glimpse(const struct mmp_place *place, long distance,
			       unsigned int order)
{
	const unsigned long size = PAGE_SIZE << order;
	unsigned long addr = (place->addr & -size) + (distance + 1) * size - 1;
	enum mmp_page leaf;
	const pte_t *pte;

	if (addr - place->start >= place->size)
		return false;
	pte = mmp_entries(place, addr & PAGE_MASK, &leaf);
	return pte ? !pte_none(mmp_pte(pte, 0)) : leaf != MMP_EMPTY;
}

/* As anon_order_any(), at the edge of a page table: beside the fault. */
static bool anon_order_any_across(const struct mmp_place *place)
{
	return anon_order_glimpse(place, -1, GROUP_ORDER) ||
	       anon_order_glimpse(place, 1, GROUP_ORDER) ||
	       anon_order_glimpse(place, -1, BLOCK_ORDER) ||
	       anon_order_glimpse(place, 1, BLOCK_ORDER);
}

/* For large folios: is there an example beside the fault? */
static bool anon_order_beside(const struct mmp_place *place, unsigned int order,
			      unsigned int least)
{
	return anon_order_example(place, -1, order, least) == MMP_USED ||
	       anon_order_example(place, 1, order, least) == MMP_USED;
}

/* mlock() populates all of the VMA: it costs nothing to do that in one go. */
static struct mmp_decision anon_order_small(const struct vm_area_struct *vma,
					    const u32 *knob,
					    enum mmp_reason reason)
{
	if ((vma->vm_flags & (VM_LOCKED | VM_LOCKONFAULT)) == VM_LOCKED)
		return (struct mmp_decision){ knob[MAX_ORDER], MMP_LOCKED };
	return (struct mmp_decision){ 0, reason };
}

/* For a fault without a page table. */
static struct mmp_decision anon_order_huge(const struct mmp_place *place,
					   const struct vm_area_struct *vma,
					   const u32 *knob)
{
	const u32 blocks = knob[PROBE_BLOCKS];

	if (knob[MAX_ORDER] < MMP_MAX_ORDER)
		return (struct mmp_decision){ 0, MMP_CAP };
	if (!anon_order_beside(place, MMP_MAX_ORDER, knob[MIN_USED_PAGES]))
		return anon_order_small(vma, knob, MMP_ALONE);
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
	pte -= pte_index(place->addr) % GROUP;
	return !pte_present(__pte(glance(pte) | glance(pte + 1) |
				  glance(pte + 2) | glance(pte + 3)));
}

/* The long way: all examples nearby. */
static noinline struct mmp_decision anon_order_judge(const struct vm_fault *vmf,
						     enum mm_policy_site site,
						     const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);
	u32 order = min(knob[MAX_ORDER], MMP_MAX_ORDER - 1U);
	const u32 least = knob[MIN_USED_PAGES];
	int blocks, groups;

	if (site == MM_POLICY_PMD)
		return anon_order_huge(&place, vmf->vma, knob);
	if (!in_the_middle(place.addr) && !anon_order_any_across(&place))
		return anon_order_small(vmf->vma, knob, MMP_ALONE);
	if (!anon_order_fits(&place))
		return anon_order_small(vmf->vma, knob, MMP_INSIDE);
	blocks = anon_order_examples(&place, BLOCK_ORDER, least);
	if (blocks > 0) {
		while (order > BLOCK_ORDER &&
		       !anon_order_beside(&place, order, least))
			order--;
		return (struct mmp_decision){ order, MMP_RUN };
	}
	groups = anon_order_examples(&place, GROUP_ORDER, least);
	if (groups <= 0)
		return anon_order_small(vmf->vma, knob,
					blocks ? MMP_UNUSED : MMP_ALONE);
	order = min(order, groups > 1 ? GROUP_ORDER + 1U : GROUP_ORDER);
	return (struct mmp_decision){ order, MMP_RUN };
}

/* The entry of the first page of a block, and of the one farthest before it. */
static __always_inline const pte_t *farthest(const pte_t *block,
					     unsigned long index)
{
	return block - (index < 4 * BLOCK ? BLOCK : 4 * BLOCK);
}

/* At a first glance: is the last page there of any that may be an example? */
static __always_inline bool anon_order_any(const pte_t *table,
					   unsigned long index)
{
	const pte_t *const group = table + (index & -GROUP);
	const pte_t *const block = table + (index & -BLOCK);

	return !pte_none(__pte(glance(group - 1) | glance(group - 1 - GROUP) |
			       glance(group - 1 - 3 * GROUP) |
			       glance(group - 1 + 2 * GROUP) |
			       glance(block - 1) |
			       glance(block - 1 + 2 * BLOCK) |
			       glance(farthest(block, index) - 1 + BLOCK)));
}

/*
 * At a second glance: may any of them be an example? As at the first one,
 * entries of others only make us look closer.
 */
static noinline struct mmp_decision anon_order_closer(const struct vm_fault *vmf,
						      const pte_t *table,
						      const u32 *knob)
{
	const unsigned long index = pte_index(vmf->address);
	const pte_t *const group = table + (index & -GROUP);
	const pte_t *const block = table + (index & -BLOCK);
	unsigned long bits = ends(block - BLOCK);

	/* The steady state of a stream needs no more. */
	if (say_used(bits) && knob[MAX_ORDER] <= BLOCK_ORDER &&
	    vmf->address - vmf->vma->vm_start >= 2 * BLOCK * PAGE_SIZE &&
	    say_used(common(block - BLOCK, BLOCK)))
		return (struct mmp_decision){ knob[MAX_ORDER], MMP_RUN };
	bits |= ends(block + BLOCK);
	bits |= ends(farthest(block, index));
	bits |= common(group - GROUP, GROUP) | common(group + GROUP, GROUP);
	bits |= common(group - 2 * GROUP, GROUP);
	bits |= common(group - 4 * GROUP, GROUP);
	if (!pte_present(__pte(bits)))
		return anon_order_small(vmf->vma, knob, MMP_ALONE);
	return anon_order_judge(vmf, MM_POLICY_PTE, knob);
}

/* The short way, for sparse access. */
static struct mmp_decision anon_order_adaptive(const struct vm_fault *vmf,
					       enum mm_policy_site site,
					       const u32 *knob)
{
	pmd_t pmd = pmdp_get_lockless(vmf->pmd);

	if (!mmp_is_table(pmd) || !in_the_middle(vmf->address))
		return anon_order_judge(vmf, site, knob);
	if (!anon_order_any(mmp_table(pmd), pte_index(vmf->address)))
		return anon_order_small(vmf->vma, knob, MMP_ALONE);
	return anon_order_closer(vmf, mmp_table(pmd), knob);
}

struct mmp_policy mmp_policy_anon_order_adaptive = {
	.name = "adaptive",
	.point = MM_POLICY_ANON_ORDER,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.witness = true,
	.anon_order = anon_order_adaptive,
};
