/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a policy of the point anon_order is told, and what it may say. Also
 * compiled in userland, where tests/unit/shim stands in for the kernel.
 */
#ifndef MMPOLICY_ANON_ORDER_H
#define MMPOLICY_ANON_ORDER_H

#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/mm_policy.h>
#include <linux/pgtable.h>

#define MMP_MIN_ORDER	2	/* mm has no large anonymous folio below it */
#define MMP_MAX_ORDER	9	/* PMD size */

/**
 * enum mmp_reason - why a fault got its order
 * @MMP_CAP: the policy's plain limit
 * @MMP_RUN: the fault extends a run of pages
 * @MMP_INSIDE: the fault is not next to a place where a folio could begin
 * @MMP_ALONE: no run of pages next to the fault
 * @MMP_UNUSED: there is one, but its last page was never touched
 * @MMP_PROBE: a PMD-sized block made of smaller folios, to see them used
 * @MMP_LOCKED: mlock() populates everything anyway
 * @MMP_REASONS: how many there are
 */
enum mmp_reason {
	MMP_CAP,
	MMP_RUN,
	MMP_INSIDE,
	MMP_ALONE,
	MMP_UNUSED,
	MMP_PROBE,
	MMP_LOCKED,
	MMP_REASONS,
};

/**
 * struct mmp_decision - the answer to one fault
 * @order: largest order wanted; 0 and 1 mean order 0
 * @reason: why
 */
struct mmp_decision {
	u32 order;
	u32 reason;
};

/**
 * struct mmp_place - where a fault is, for mmp_look()
 * @table: page table that maps the fault, or %NULL
 * @pmd: the entry above it. A neighbour in the same page of entries may be
 *	followed as long as it maps a part of the VMA.
 * @index: of the fault in @table
 * @swapin: the page is in swap
 */
struct mmp_place {
	const pte_t *table;
	pmd_t *pmd;
	long index;
	bool swapin;
};

enum mmp_page {
	MMP_EMPTY,	/* nothing there */
	MMP_MAPPED,	/* there, but never touched as far as hardware knows */
	MMP_USED,	/* there and touched */
};

/* What a page table entry says. In swap is gone for swap-in, used otherwise. */
static inline enum mmp_page mmp_pte_page(const struct mmp_place *place,
					 pte_t pte)
{
	if (pte_present(pte))
		return pte_young(pte) ? MMP_USED : MMP_MAPPED;
	return pte_none(pte) || place->swapin ? MMP_EMPTY : MMP_USED;
}

/* The page table below @pmd; NULL for anything else. The VMA keeps it there. */
static inline const pte_t *mmp_table(pmd_t pmd)
{
	if (pmd_none(pmd) || !pmd_present(pmd) || pmd_leaf(pmd) || pmd_bad(pmd))
		return NULL;
	return (const pte_t *)pmd_page_vaddr(pmd);
}

/**
 * mmp_place - where a fault is
 * @vmf: the fault
 * @site: which hook
 */
static inline struct mmp_place mmp_place(const struct vm_fault *vmf,
					 enum mm_policy_site site)
{
	return (struct mmp_place){
		.table = site == MM_POLICY_PMD ? NULL : mmp_table(*vmf->pmd),
		.pmd = vmf->pmd,
		.index = (vmf->address >> PAGE_SHIFT) & (PTRS_PER_PTE - 1),
		.swapin = site == MM_POLICY_SWAPIN,
	};
}

/* mmp_look() for a page in the table before (@index < 0) or after. */
static inline enum mmp_page mmp_look_across(const struct mmp_place *place,
					    long index)
{
	pmd_t *next = place->pmd + (index < 0 ? -1 : 1);
	const pte_t *table;
	pmd_t pmd;

	if (((unsigned long)next ^ (unsigned long)place->pmd) & PAGE_MASK)
		return MMP_EMPTY;
	pmd = pmdp_get_lockless(next);
	if (pmd_present(pmd) && pmd_leaf(pmd))
		return pmd_young(pmd) ? MMP_USED : MMP_MAPPED;
	table = mmp_table(pmd);
	if (!table)
		return MMP_EMPTY;
	index &= PTRS_PER_PTE - 1;
	return mmp_pte_page(place, ptep_get_lockless((pte_t *)table + index));
}

/**
 * mmp_look - what is at a page near the fault
 * @place: where the fault is
 * @distance: in pages, at most %PTRS_PER_PTE either way, within the VMA
 */
static inline enum mmp_page mmp_look(const struct mmp_place *place,
				     long distance)
{
	long index = place->index + distance;

	if (unlikely((unsigned long)index >= PTRS_PER_PTE))
		return mmp_look_across(place, index);
	if (unlikely(!place->table))
		return MMP_EMPTY;
	return mmp_pte_page(place,
			    ptep_get_lockless((pte_t *)place->table + index));
}

/**
 * mmp_lowered - an order under memory pressure
 * @order: what the policy wants
 * @free: free memory above the high watermarks, in 1/1000 of the node
 * @limit: where lowering begins, in percent of the node; 0 for never
 *
 * Return: @order, scaled down in proportion where less than @limit is free.
 */
static inline unsigned int mmp_lowered(unsigned int order, unsigned int free,
				       unsigned int limit)
{
	if (likely(free >= limit * 10))
		return order;
	return order * free / (limit * 10);
}

#endif /* MMPOLICY_ANON_ORDER_H */
