/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Arguments and answers of policies of the point anon_order, which chooses the
 * folio order of an anonymous page fault. The unit tests compile this header in
 * userland, where tests/unit/shim provides the kernel's types.
 */
#ifndef MMPOLICY_ANON_ORDER_H
#define MMPOLICY_ANON_ORDER_H

#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/pgtable.h>

#include "../compat.h"
#include "../mmpolicy.h"

#define MMP_MIN_ORDER	2	/* mm makes no large anonymous folio below this order */
#define MMP_MAX_ORDER	9	/* PMD size */
#define MMP_ORDER_STOCK	10	/* mm chooses the order: the policy was removed during the call */

/**
 * enum mmp_reason - why a policy requested its order for a fault
 * @MMP_CAP: a fixed limit of the policy, such as max_order
 * @MMP_DENSE_NEIGHBOUR: memory near the fault was used in full
 * @MMP_NO_ROOM: memory near the fault was used in full, but no large folio fits
 *	around the fault
 * @MMP_NO_NEIGHBOUR: no memory near the fault was used in full
 * @MMP_SPARSE_NEIGHBOUR: near the fault, more memory was allocated than used
 * @MMP_PROBE: adaptive chose folios below PMD size for this block, because
 *	their accessed bits show whether the block is used
 * @MMP_LOCKED: mlock() populates the whole VMA, so large folios waste nothing
 * @MMP_DEFERRED: adaptive did not read page tables, because many faults before
 *	got order 0
 * @MMP_REASONS: number of reasons
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
 * struct mmp_decision - the answer of a policy to one fault
 * @reason: enum mmp_reason, for the counters
 * @order: largest order requested; 0 and 1 mean order 0, %MMP_ORDER_STOCK
 *	leaves the choice to mm
 */
struct mmp_decision {
	u32 reason;
	u32 order;
};

/*
 * VMA flags that need extra checks, so a fault in such a VMA takes the slow
 * path of the module. VM_UFFD_MINOR is missing, as only VMAs of files have it.
 */
#define MMP_SPECIAL_FLAGS						\
	(VM_HUGEPAGE | VM_NOHUGEPAGE | VM_LOCKED | VM_UFFD_MISSING | VM_UFFD_WP)

/*
 * Returns true if memory near the fault may have been used in full. Defined in
 * adaptive.c.
 */
bool mmp_anon_order_near(const struct vm_fault *vmf);

/**
 * mmp_mlock_override - request the policy's largest order in a VMA that mlock()
 * populates in full
 * @policy: the policy
 * @vma: the VMA of the fault
 * @knob: values of the policy's knobs
 * @d: the policy's decision
 *
 * mlock() populates every page of a VMA, so the largest folios waste nothing
 * there. A policy that decides by accessed bits cannot see this.
 *
 * Return: the decision to use; @d unless the VMA is locked and @d is order 0.
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
	MMP_EMPTY,	/* not present: never touched, or swapped out */
	MMP_MAPPED,	/* present, accessed bit clear */
	MMP_USED,	/* present, accessed bit set */
};

/**
 * struct mmp_place - position of a fault in its VMA and page tables, for
 * mmp_entries()
 * @addr: address of the fault
 * @start: start of the VMA
 * @size: size of the VMA in bytes
 * @pmd: PMD entry for @addr
 * @here: page table entry for @addr, or NULL if there is no page table
 */
struct mmp_place {
	unsigned long addr;
	unsigned long start;
	unsigned long size;
	pmd_t *pmd;
	const pte_t *here;
};

/**
 * mmp_place - describe the position of a fault in its VMA and page tables
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

/*
 * Reads the page table entry @pages after @pte, which must be in the same page
 * table.
 */
static inline pte_t mmp_pte(const pte_t *pte, long pages)
{
	return mmp_read_pte(pte + pages);
}

/*
 * Classifies a page by its page table entry. A swapped-out page counts as
 * empty, because it was not used for a long time.
 */
static __always_inline enum mmp_page mmp_page_of(pte_t pte)
{
	if (pte_present(pte))
		return pte_young(pte) ? MMP_USED : MMP_MAPPED;
	return MMP_EMPTY;
}

/*
 * Finds the page table entry of @addr, as mmp_entries() does, where @addr is in
 * another page table than the fault. Returns NULL if there is no page table, or
 * if the PMD entry of @addr is in another page than the fault's PMD entry.
 */
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
 * mmp_entries - find the page table entry of an address near the fault
 * @place: position of the fault
 * @addr: an address in this VMA, as only page tables of this VMA cannot be
 *	freed during the fault
 * @leaf: set to the state of the huge page that maps @addr, or to %MMP_EMPTY if
 *	no huge page does
 *
 * Return: the entry for @addr, or NULL without a page table. The entries after
 * it are valid up to the end of the page table.
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
 * mmp_lowered - lower an order in proportion to a shortage of memory
 * @order: the order that the policy requests
 * @free: free memory above the high watermarks, in 1/1000 of the node
 * @limit: lowering begins below this much free memory, in percent of the node;
 *	0: never
 *
 * Return: @order, scaled down in proportion where less than @limit percent is
 * free.
 */
static inline unsigned int mmp_lowered(unsigned int order, unsigned int free,
				       unsigned int limit)
{
	if (likely(free >= limit * 10))
		return order;
	return order * free / (limit * 10);
}

#endif /* MMPOLICY_ANON_ORDER_H */
