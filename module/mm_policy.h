/* SPDX-License-Identifier: GPL-2.0 */
/*
 * For kernels without the hooks: what include/linux/mm_policy.h declares where they
 * are. There these functions are in provider/. tests/unit compares both.
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

/* First touch with a page table below vmf->pmd, or none or zeroes; swap entry in a table. */
enum mm_policy_site { MM_POLICY_PTE, MM_POLICY_PMD, MM_POLICY_SWAPIN };
enum mm_policy_compact { MM_POLICY_DEFER, MM_POLICY_TRY, MM_POLICY_TRY_ALL };

/* An answer of @anon_orders: do as sysfs says. Order 0 has no bit. */
#define MM_POLICY_STOCK		1UL
#define MM_POLICY_GFP_MASK (__GFP_RECLAIM | __GFP_NORETRY | __GFP_THISNODE | __GFP_ONLY_COMPACT)

/**
 * struct mm_policy_ops - decisions that a policy module takes
 * @abi: %MM_POLICY_ABI; callbacks alone follow
 * @anon_orders: large orders for an anonymous fault, a bit each, in place of what sysfs enables. 0:
 *	order 0 only. %MM_POLICY_STOCK: no opinion. The VMA lock or mmap_lock is held for read, no
 *	page table lock is. Page tables that map a part of vmf->vma stay until this RCU section
 *	ends; use ptep_get_lockless(). Also asked where MADV_NOHUGEPAGE or prctl() refuse all.
 * @anon_mapped: a large folio is mapped, or also a page while %MM_POLICY_ANON_PAGES is on. The page
 *	table lock is held. True: let its outermost pages, but for that of the fault, be old.
 * @collapse_orders: those khugepaged may make at @addr of @vma; mmap_lock is held for read.
 * @thp_gfp: flags for large folios of a fault in @vma, in place of @gfp, in what is of
 *	%MM_POLICY_GFP_MASK. The VMA lock or mmap_lock is held for read.
 * @thp_done: an attempt of @thp_gfp gave @folio, which is charged, or %NULL.
 * @compact_try: leave @zone out, compact it, or also its blocks that were of no use lately? mm
 *	would do @stock. Not asked at the last priority. Must not allocate.
 * @compact_done: result of direct compaction of @zone, with pages scanned.
 * @bulk_pages: pages for a page_pool refill, 1..@max, not @stock; @nid may be %NUMA_NO_NODE.
 * @bulk_done: what it brought. Both are asked in softirq.
 * @madv_free_eager: MADV_FREE of anonymous @vma at once? mmap_lock or the VMA lock is held.
 *
 * All callbacks are required, run under rcu_read_lock() and must not sleep.
 * A point is asked only while mm_policy_enable() has it on.
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
