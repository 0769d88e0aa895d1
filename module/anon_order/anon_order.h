/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Arguments and answers of policies of the point anon_order. Also compiled in
 * userland, where tests/unit/shim stands in for the kernel.
 */
#ifndef MMPOLICY_ANON_ORDER_H
#define MMPOLICY_ANON_ORDER_H

#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/pgtable.h>

#include "../compat.h"
#include "../mmpolicy.h"

#define MMP_MIN_ORDER	2	/* mm has no large anonymous folio below it */
#define MMP_MAX_ORDER	9	/* PMD size */
#define MMP_ORDER_STOCK	10	/* an answer of a policy that has gone: as stock */

/**
 * enum mmp_reason - why a fault got its order
 * @MMP_CAP: the policy's plain limit
 * @MMP_DENSE_NEIGHBOUR: memory nearby was used in full
 * @MMP_NO_ROOM: memory nearby was used in full, but no folio fits around the fault
 * @MMP_NO_NEIGHBOUR: no memory nearby was used in full
 * @MMP_SPARSE_NEIGHBOUR: more memory nearby was allocated than was used
 * @MMP_PROBE: a PMD-sized block made of smaller folios, to see them used
 * @MMP_LOCKED: mlock() populates everything anyway
 * @MMP_DEFERRED: not looked at, as many faults before got order 0
 * @MMP_REASONS: how many there are
 */
enum mmp_reason {
	MMP_CAP,
	MMP_DENSE_NEIGHBOUR,
	MMP_NO_ROOM,
	MMP_NO_NEIGHBOUR,
	MMP_SPARSE_NEIGHBOUR,
	MMP_PROBE,
	MMP_LOCKED,
	MMP_DEFERRED,
	MMP_REASONS,
};

/**
 * struct mmp_decision - the answer to one fault
 * @reason: why
 * @order: largest order wanted; 0 and 1 mean order 0. %MMP_ORDER_STOCK: no opinion
 */
struct mmp_decision {
	u32 reason;
	u32 order;
};

/* VMA flags that need a closer look. VM_UFFD_MINOR is for files only. */
#define MMP_SPECIAL_FLAGS						\
	(VM_HUGEPAGE | VM_NOHUGEPAGE | VM_LOCKED | VM_UFFD_MISSING | VM_UFFD_WP)

/* Does a policy that judges by use have a reason to look? adaptive.c has its first look. */
bool mmp_anon_order_near(const struct vm_fault *vmf);

/**
 * mmp_mlock_override - let the cap decide in a VMA that mlock() populates in full
 * @policy: the policy
 * @vma: the VMA of the fault
 * @knob: values of its knobs
 * @d: its decision
 *
 * mlock() populates all of a VMA. A policy that judges by use does not know; the
 * largest folios cost nothing there.
 * Return: the decision to take.
 */
static inline struct mmp_decision mmp_mlock_override(const struct mmp_policy *policy,
						     const struct vm_area_struct *vma,
						     const u32 *knob,
						     struct mmp_decision d)
{
	const unsigned long locked = vma->vm_flags & (VM_LOCKED | VM_LOCKONFAULT);

	if (policy->witness && !d.order && d.reason != MMP_CAP && locked == VM_LOCKED)
		return (struct mmp_decision){ MMP_LOCKED, knob[0] };
	return d;
}

enum mmp_page {
	MMP_EMPTY,	/* nothing there */
	MMP_MAPPED,	/* there, but never touched as far as hardware knows */
	MMP_USED,	/* there and touched */
};

/**
 * struct mmp_place - the surroundings of a fault, for mmp_entries()
 * @addr: of the fault
 * @start: of the VMA
 * @size: of the VMA, in bytes
 * @pmd: entry for @addr
 * @here: the page table entry for @addr, or NULL if there is no page table
 */
struct mmp_place {
	unsigned long addr;
	unsigned long start;
	unsigned long size;
	pmd_t *pmd;
	const pte_t *here;
};

/**
 * mmp_place - describe the surroundings of a fault
 * @vmf: the fault
 */
static __always_inline struct mmp_place mmp_place(const struct vm_fault *vmf)
{
	pmd_t pmd = pmdp_get_lockless(vmf->pmd);

	return (struct mmp_place){
		.addr = vmf->address,
		.start = vmf->vma->vm_start,
		.size = vmf->vma->vm_end - vmf->vma->vm_start,
		.pmd = vmf->pmd,
		.here = mmp_is_table(pmd) ?
			mmp_table(pmd) + pte_index(vmf->address) : NULL,
	};
}

/* The entry @pages behind @pte, within its page table. */
static inline pte_t mmp_pte(const pte_t *pte, long pages)
{
	return mmp_read_pte(pte + pages);
}

/* What an entry says of its page. A page in swap counts as empty: it was used long ago. */
static __always_inline enum mmp_page mmp_page_of(pte_t pte)
{
	if (pte_present(pte))
		return pte_young(pte) ? MMP_USED : MMP_MAPPED;
	return MMP_EMPTY;
}

/* mmp_entries() for another page table than that of the fault, within one page of PMDs. */
static noinline __maybe_unused const pte_t *
mmp_entries_of(const struct mmp_place *place, unsigned long addr,
	       enum mmp_page *leaf)
{
	pmd_t pmd;

	*leaf = MMP_EMPTY;
	if ((addr ^ place->addr) & PUD_MASK)
		return NULL;
	pmd = pmdp_get_lockless(place->pmd + pmd_index(addr) -
				pmd_index(place->addr));
	if (mmp_is_table(pmd))
		return mmp_table(pmd) + pte_index(addr);
	if (pmd_present(pmd) && pmd_leaf(pmd))
		*leaf = pmd_young(pmd) ? MMP_USED : MMP_MAPPED;
	return NULL;
}

/**
 * mmp_entries - the page table entries of a place near the fault
 * @place: where the fault is
 * @addr: in the VMA, as only its tables stay
 * @leaf: set if there are no entries: one page for all, or nothing
 *
 * Return: the entry for @addr, or NULL. Those up to the end of its table follow.
 */
static __always_inline const pte_t *mmp_entries(const struct mmp_place *place,
						unsigned long addr,
						enum mmp_page *leaf)
{
	if ((addr ^ place->addr) & PMD_MASK)
		return mmp_entries_of(place, addr, leaf);
	*leaf = MMP_EMPTY;
	if (!place->here)
		return NULL;
	return place->here + ((long)(addr - place->addr) >> PAGE_SHIFT);
}

/**
 * mmp_lowered - an order under memory pressure
 * @order: the order that the policy wants
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
