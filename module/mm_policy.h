/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Copy of include/linux/mm_policy.h for kernels without the hooks, where provider/
 * implements its functions. tests/unit checks that both headers agree.
 */
#ifndef MMPOLICY_MM_POLICY_H
#define MMPOLICY_MM_POLICY_H

#include <linux/mm.h>

#define MM_POLICY_ABI	3

enum mm_policy_point {
	MM_POLICY_ANON_ORDER,	/* folio order of an anonymous fault */
	MM_POLICY_THP_GFP,	/* effort to allocate a large anonymous folio */
	MM_POLICY_COMPACT,	/* whether direct compaction is worth it */
	MM_POLICY_BULK,		/* pages per bulk allocation */
	MM_POLICY_MADV_FREE,	/* MADV_FREE: lazy or at once */
	MM_POLICY_POINTS,
	MM_POLICY_ANON_PAGES = MM_POLICY_POINTS, /* not a point: see @anon_mapped */
};

/* PTE: first touch in a page table; PMD: where none is, or the huge zero page; SWAPIN: swap-in. */
enum mm_policy_site { MM_POLICY_PTE, MM_POLICY_PMD, MM_POLICY_SWAPIN };
enum mm_policy_compact { MM_POLICY_DEFER, MM_POLICY_TRY, MM_POLICY_TRY_ALL };

/* An answer of @anon_orders: use what sysfs enables. Bit 0 is free for it: order 0 has no bit. */
#define MM_POLICY_STOCK		1UL
#define MM_POLICY_GFP_MASK (__GFP_RECLAIM | __GFP_NORETRY | __GFP_THISNODE | __GFP_ONLY_COMPACT)

/**
 * struct mm_policy_ops - decisions that a policy module takes
 * @abi: must be %MM_POLICY_ABI; all other members are callbacks
 * @anon_orders: returns the large orders that an anonymous fault may use, as a bitmap. 0: order 0
 *	only. %MM_POLICY_STOCK: those that sysfs enables. VMA lock or mmap_lock is held for read;
 *	no page table lock is: use ptep_get_lockless(). Page tables of vmf->vma are not freed before
 *	this RCU section ends. Also called where MADV_NOHUGEPAGE or prctl() forbids large folios.
 * @anon_mapped: reports a mapped large folio, or any with %MM_POLICY_ANON_PAGES; page table lock
 *	held. True: clear the accessed bits of its first and last page, but not of the faulting one.
 * @collapse_orders: returns the orders to which khugepaged may collapse @addr; mmap_lock is held.
 * @thp_gfp: returns gfp flags to allocate a large folio for a fault in @vma. Only its bits in
 *	%MM_POLICY_GFP_MASK replace those of @gfp. The VMA lock or mmap_lock is held for read.
 * @thp_done: reports the @folio allocated and charged with these flags, or %NULL for a failure.
 * @compact_try: returns whether to skip @zone, compact it, or compact it without its skip hints;
 *	@stock is mm's own choice. Not called at the last priority. Must not allocate.
 * @compact_done: reports the result of direct compaction of @zone, and the pages scanned.
 * @bulk_pages: returns how many pages a page_pool refill requests, 1 to @max, in place of @stock.
 * @bulk_done: reports how many it got. Both may run in softirq, with @nid %NUMA_NO_NODE.
 * @madv_free_eager: true: MADV_FREE frees the range at once. mmap_lock or the VMA lock is held.
 *
 * All callbacks are required, run under rcu_read_lock() and must not sleep.
 * They are called only while mm_policy_enable() has turned their point on.
 */
struct mm_policy_ops {
	unsigned long abi;
	unsigned long (*anon_orders)(const struct vm_fault *vmf, enum mm_policy_site site);
	bool (*anon_mapped)(const struct vm_fault *vmf, int order);
	unsigned long (*collapse_orders)(struct vm_area_struct *vma, unsigned long addr);
	gfp_t (*thp_gfp)(struct vm_area_struct *vma, gfp_t gfp);
	void (*thp_done)(struct vm_area_struct *vma, int order, struct folio *folio);
	enum mm_policy_compact (*compact_try)(struct zone *zone, int order, gfp_t gfp,
					      enum mm_policy_compact stock);
	void (*compact_done)(struct zone *zone, int order, gfp_t gfp, bool success,
			     unsigned long migrate_scanned, unsigned long free_scanned);
	unsigned int (*bulk_pages)(int nid, unsigned int stock, unsigned int max);
	void (*bulk_done)(int nid, unsigned int want, unsigned int got);
	bool (*madv_free_eager)(struct vm_area_struct *vma, unsigned long start, unsigned long end);
};

int mm_policy_register(const struct mm_policy_ops *ops);
void mm_policy_unregister(const struct mm_policy_ops *ops);
void mm_policy_enable(const struct mm_policy_ops *ops, enum mm_policy_point point, bool on);

#endif /* MMPOLICY_MM_POLICY_H */
