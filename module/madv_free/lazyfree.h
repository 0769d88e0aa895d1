/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How many pages an address space has freed lazily and neither reused nor lost:
 * no less than there are, with no callback for reuse. Not known is what mremap()
 * has moved, and what was mapped between the question and the call. Plain logic,
 * also compiled in userland; what it does not know it asks &struct mmp_lazy_ops.
 */
#ifndef MMPOLICY_LAZYFREE_H
#define MMPOLICY_LAZYFREE_H

#include <linux/atomic.h>
#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/pgtable.h>

/* An area is what one page table maps. */
#define MMP_AREA_SIZE	PMD_SIZE
#define MMP_AREA_PAGES	PTRS_PER_PTE

/* Together 32 kB; enough for 7 GB of areas that have lazily freed pages. */
#define MMP_LAZY_SETS	448
#define MMP_LAZY_WAYS	8
#define MMP_LAZY_AREAS	(MMP_LAZY_SETS * MMP_LAZY_WAYS)
#define MMP_LAZY_CALLS	64

/* Page table entries that may be looked at for each page that is freed. */
#define MMP_LAZY_LOOKS		16
/* Page table entries that one call may look at, at most: those of 20 areas. */
#define MMP_LAZY_MAX_LOOKS	(20 * MMP_AREA_PAGES)
/* Areas of its own range in which a call counts what is mapped. */
#define MMP_LAZY_COUNTED	20
/* Areas and holes that a call may go through; with more it is not lazy. */
#define MMP_LAZY_MAX_STEPS	2048
/* The count of an area that could not be counted. */
#define MMP_LAZY_UNKNOWN	(~0UL)
/* Page tables that the keeper looks at in a pass, each quarter of a second. */
#define MMP_KEEPER_TABLES	1024U
/* Looks that a call pays for an area that it finds busy, and so does not count. */
#define MMP_LAZY_BUSY_LOOKS	64

struct mmp_profile;

/**
 * enum mmp_lazy_answer - how MADV_FREE frees, and why
 * @MMP_ANSWER_LAZY: lazily
 * @MMP_ANSWER_EAGER: at once, as the policy always does
 * @MMP_ANSWER_LIMIT: at once: too much is lazily freed
 * @MMP_ANSWER_MEMORY: at once: memory is short
 * @MMP_ANSWER_UNKNOWN: at once: what is lazily freed is not known
 * @MMP_LAZY_ANSWERS: how many there are
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
 * struct mmp_lazy_call - a lazy madvise() call that may still go on
 * @start: of its range
 * @end: of its range
 * @task: who called; 0 for nobody
 */
struct mmp_lazy_call {
	unsigned long start;
	unsigned long end;
	u32 task;
};

/**
 * struct mmp_lazy_count - how many pages a call would free, at most
 * @pages: how many in all
 * @in: how many in each of the first areas
 */
struct mmp_lazy_count {
	unsigned long pages;
	u16 in[MMP_LAZY_COUNTED];
};

struct mmp_lazy;

/**
 * struct mmp_lazy_ops - what the logic cannot know
 * @pages: how many pages are mapped from @addr on, up to the end of the area or
 *	of a hole, but not beyond *@end; *@end comes back as how far that is.
 *	Without @look at the entries of a page table, all that it can map.
 * @lazy: how many pages of the area at @start are lazily freed now, rather too
 *	many than too few; %MMP_LAZY_UNKNOWN if that cannot be told now. Others may
 *	change @lazy meanwhile: the lock is not held while entries are read.
 * @ended: has a task that has called madvise() left it for certain?
 */
struct mmp_lazy_ops {
	unsigned long (*pages)(struct mm_struct *mm, unsigned long addr,
			       unsigned long *end, bool look);
	unsigned long (*lazy)(struct mmp_lazy *lazy, unsigned long start);
	bool (*ended)(u32 task);
};

/**
 * struct mmp_lazy - what is known of an address space
 * @ops: what to ask
 * @mm: the address space
 * @group: the sum over all that share a limit; %NULL once nobody asks any more
 * @pages: lazily freed at most; the sum over @areas, and what found no room
 * @looks: page table entries that calls have paid for and not looked at
 * @hand: the area that was looked at last
 * @changes: how often pages were added to an area
 * @calls: the last call of each task; as long as it is here it may go on
 * @areas: address of an area, the number of its last change, and how many of its
 *	pages are lazily freed at most; 0 for none. An area has its place in one set.
 * @sets: those that are not empty
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
 * struct mmp_lazy_limit - what a call is held to
 * @pages: how many may be lazily freed
 * @shared: by the whole group, not by this address space
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
