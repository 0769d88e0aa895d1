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

#include "../compat.h"

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

enum mmp_page {
	MMP_EMPTY,	/* nothing there */
	MMP_MAPPED,	/* there, but never touched as far as hardware knows */
	MMP_USED,	/* there and touched */
};

/**
 * struct mmp_place - what is around a fault, for mmp_look()
 * @addr: of the fault
 * @start: of the VMA
 * @size: of the VMA, in bytes
 * @pmd: entry for @addr
 * @entry: what it said then: a page table, or nothing
 * @site: which hook; for swap-in, other pages in swap say nothing
 */
struct mmp_place {
	unsigned long addr;
	unsigned long start;
	unsigned long size;
	pmd_t *pmd;
	pmd_t entry;
	enum mm_policy_site site;
};

/**
 * mmp_place - what is around a fault
 * @vmf: the fault
 * @site: which hook
 */
static __always_inline struct mmp_place mmp_place(const struct vm_fault *vmf,
						  enum mm_policy_site site)
{
	return (struct mmp_place){
		.addr = vmf->address,
		.start = vmf->vma->vm_start,
		.size = vmf->vma->vm_end - vmf->vma->vm_start,
		.pmd = vmf->pmd,
		.entry = pmdp_get_lockless(vmf->pmd),
		.site = site,
	};
}

/* The entry @bytes from where @pte is, in the same page table. */
static inline pte_t mmp_pte(const pte_t *pte, long bytes)
{
	return ptep_get_lockless((pte_t *)pte + (bytes >> PAGE_SHIFT));
}

static __always_inline enum mmp_page mmp_look_table(const pte_t *table,
						    unsigned long addr,
						    enum mm_policy_site site)
{
	pte_t pte = mmp_pte(table, addr & (PMD_SIZE - 1));

	if (pte_present(pte))
		return pte_young(pte) ? MMP_USED : MMP_MAPPED;
	return pte_none(pte) || site == MM_POLICY_SWAPIN ? MMP_EMPTY : MMP_USED;
}

/* mmp_look() for an @addr in the page table beside the one below @pmd. */
static noinline __maybe_unused enum mmp_page
mmp_look_across(pmd_t *pmd, bool after, unsigned long addr,
		enum mm_policy_site site)
{
	pmd_t *there = after ? pmd + 1 : pmd - 1;
	pmd_t entry;

	if (((unsigned long)there ^ (unsigned long)pmd) & PAGE_MASK)
		return MMP_EMPTY;
	entry = pmdp_get_lockless(there);
	if (mmp_is_table(entry))
		return mmp_look_table(mmp_table(entry), addr, site);
	if (pmd_present(entry) && pmd_leaf(entry))
		return pmd_young(entry) ? MMP_USED : MMP_MAPPED;
	return MMP_EMPTY;
}

/**
 * mmp_look - what is at a page near the fault
 * @place: where the fault is
 * @distance: in pages, at most %PTRS_PER_PTE either way
 *
 * Return: %MMP_EMPTY for what is not in the VMA: only its tables stay there.
 */
static __always_inline enum mmp_page mmp_look(const struct mmp_place *place,
					      long distance)
{
	unsigned long addr = place->addr + distance * PAGE_SIZE;

	if (addr - place->start >= place->size)
		return MMP_EMPTY;
	if ((addr ^ place->addr) & PMD_MASK)
		return mmp_look_across(place->pmd, distance > 0, addr,
				       place->site);
	if (!mmp_is_table(place->entry))
		return MMP_EMPTY;
	return mmp_look_table(mmp_table(place->entry), addr, place->site);
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
