/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Counts the pages that a process has freed lazily (MADV_FREE), and that it has
 * not used again and reclaim has not taken. The count is an upper bound, as no
 * callback reports use. It misses pages that mremap() has moved, and pages
 * mapped between mmp_lazy_count() and the call. The unit tests compile this
 * header in user space; it reads page tables and tasks through &struct
 * mmp_lazy_ops.
 */
#ifndef MMPOLICY_LAZYFREE_H
#define MMPOLICY_LAZYFREE_H

#include <linux/atomic.h>
#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/pgtable.h>

/* An area is the range that one page table maps. */
#define MMP_AREA_SIZE	PMD_SIZE
#define MMP_AREA_PAGES	PTRS_PER_PTE

/*
 * The table of areas has a size of 28 kB. It can count the lazily freed pages
 * of 7 GB of address space, in areas of 2 MB.
 */
#define MMP_LAZY_SETS	448
#define MMP_LAZY_WAYS	8
#define MMP_LAZY_AREAS	(MMP_LAZY_SETS * MMP_LAZY_WAYS)
#define MMP_LAZY_CALLS	64

/*
 * Page table entries that an MADV_FREE call may read to recount areas, for each page that it frees.
 */
#define MMP_LAZY_LOOKS		16
/* Page table entries that one MADV_FREE call may examine at most: those of 20 areas. */
#define MMP_LAZY_MAX_LOOKS	(20 * MMP_AREA_PAGES)
/*
 * An MADV_FREE call counts the mapped pages in the first 20 areas of its range; each page table
 * beyond them counts as full.
 */
#define MMP_LAZY_COUNTED	20
/*
 * Areas and holes that one MADV_FREE call may walk through. The kernel frees the range of a longer
 * call at once.
 */
#define MMP_LAZY_MAX_STEPS	2048
/* Returned in place of a number of pages if the pages of an area could not be counted. */
#define MMP_LAZY_UNKNOWN	(~0UL)
/*
 * Most page tables that the worker examines to recount processes in one pass, each quarter of a
 * second. Each process counts as one more page table.
 */
#define MMP_KEEPER_TABLES	1024U
/*
 * Page table reads deducted from the budget of a call for an area that cannot
 * be recounted, because another running call overlaps it.
 */
#define MMP_LAZY_BUSY_LOOKS	64

struct mmp_profile;

/**
 * enum mmp_lazy_answer - whether MADV_FREE frees lazily, and the reason
 * @MMP_ANSWER_LAZY: lazily
 * @MMP_ANSWER_EAGER: at once, as the policy always does
 * @MMP_ANSWER_LIMIT: at once: the limit of lazily freed pages is reached
 * @MMP_ANSWER_MEMORY: at once: memory is short
 * @MMP_ANSWER_UNKNOWN: at once: the number of lazily freed pages is unknown
 * @MMP_LAZY_ANSWERS: number of answers
 */
enum mmp_lazy_answer {
	MMP_ANSWER_LAZY,
	MMP_ANSWER_EAGER,
	MMP_ANSWER_LIMIT,
	MMP_ANSWER_MEMORY,
	MMP_ANSWER_UNKNOWN,
	MMP_LAZY_ANSWERS,
};

/**
 * struct mmp_lazy_call - a lazy madvise() call that may still run
 * @start: start of its range
 * @end: end of its range
 * @task: PID of the caller; 0 for a free slot
 */
struct mmp_lazy_call {
	unsigned long start;
	unsigned long end;
	u32 task;
};

/**
 * struct mmp_lazy_count - upper bound of the pages that a call would free
 * @pages: pages in all areas
 * @in: pages in each of the first areas
 */
struct mmp_lazy_count {
	unsigned long pages;
	u16 in[MMP_LAZY_COUNTED];
};

struct mmp_lazy;

/**
 * struct mmp_lazy_ops - access to page tables and tasks
 * @pages: returns the number of mapped pages from @addr on, up to the end of the area or of a
 *	hole, but not beyond *@end; sets *@end to the address reached. Without @look, reads no
 *	entries, and counts each page table as full.
 * @lazy: returns an upper bound of the lazily freed pages of the area at @start;
 *	%MMP_LAZY_UNKNOWN if they cannot be counted now. Drops the lock while entries are read, so
 *	other tasks may change @lazy.
 * @ended: returns true if a task has certainly left its madvise() call
 */
struct mmp_lazy_ops {
	unsigned long (*pages)(struct mm_struct *mm, unsigned long addr,
			       unsigned long *end, bool look);
	unsigned long (*lazy)(struct mmp_lazy *lazy, unsigned long start);
	bool (*ended)(u32 task);
};

/**
 * struct mmp_lazy - lazily freed pages of an address space
 * @ops: access to page tables and tasks
 * @mm: the address space
 * @group: sum over all address spaces that share a limit; %NULL once tracking
 *	has ended
 * @pages: upper bound of lazily freed pages: the sum over @areas, plus pages
 *	whose set was full
 * @looks: page table entries that calls may still read in recounts
 * @hand: index in @areas of the area that was recounted last
 * @changes: number of additions to an area so far
 * @calls: the last call of each task, which may still run
 * @areas: address of an area, the number of its last change, and the upper
 *	bound of its lazily freed pages; 0 for none. An area hashes to one
 *	set of MMP_LAZY_WAYS entries.
 * @sets: bitmap of the sets that are not empty
 */
struct mmp_lazy {
	const struct mmp_lazy_ops *ops;
	struct mm_struct *mm;
	atomic_long_t *group;
	unsigned long pages;
	unsigned long looks;
	unsigned int hand;
	unsigned long changes;
	struct mmp_lazy_call calls[MMP_LAZY_CALLS];
	u64 areas[MMP_LAZY_AREAS];
	DECLARE_BITMAP(sets, MMP_LAZY_SETS);
};

/**
 * struct mmp_lazy_limit - limit for a call
 * @pages: lazily freed pages allowed
 * @shared: true if the limit applies to the whole group, false for this address space only
 */
struct mmp_lazy_limit {
	unsigned long pages;
	bool shared;
};

void mmp_lazy_count(const struct mmp_lazy *lazy, const struct mmp_lazy_call *call,
		    unsigned long most, struct mmp_lazy_count *count);
enum mmp_lazy_answer mmp_lazy_ask(struct mmp_lazy *lazy, const struct mmp_lazy_call *call,
				  const struct mmp_lazy_count *count,
				  struct mmp_lazy_limit limit);
void mmp_lazy_found(struct mmp_lazy *lazy, unsigned long addr, unsigned long pages);
bool mmp_lazy_look_at(struct mmp_lazy *lazy, unsigned int index);
unsigned int mmp_lazy_recount(struct mmp_lazy *lazy, unsigned int index, unsigned int *tables);
void mmp_lazy_move(struct mmp_lazy *lazy, atomic_long_t *group);

/* tracked.c */
enum mmp_lazy_answer mmp_tracked_ask(struct vm_area_struct *vma, unsigned long start,
				     unsigned long end, struct mmp_lazy_limit limit);
void mmp_tracked_leave(const struct mm_struct *mm);
#define MMP_TRACKED_GROUPS	(USHRT_MAX + 1)
#define MMP_TRACKED_SCRATCH	(MMP_TRACKED_GROUPS * sizeof(atomic_long_t))
void mmp_tracked_switched(bool on, void *scratch);
u64 mmp_tracked_lazy_pages(const struct mmp_profile *profile);

#endif /* MMPOLICY_LAZYFREE_H */
