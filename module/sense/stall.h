/* SPDX-License-Identifier: GPL-2.0 */
/* How long something took: taken by task, counted as a sum and a histogram. */
#ifndef MMPOLICY_STALL_H
#define MMPOLICY_STALL_H

#include <linux/atomic.h>
#include <linux/hash.h>
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/minmax.h>
#include <linux/sched.h>

#include "whose.h"

#define MMP_MIN_STALL	12	/* log2 of ns: what took less than 8 us */
#define MMP_MAX_STALL	31	/* and what took more than 2 s */

/* Their names, from the index @first of a table of counters on. */
#define MMP_STALL_COUNTERS(first)					\
	[first] = "stall_ns",						\
	"stall_ns_log2_12", "stall_ns_log2_13", "stall_ns_log2_14",	\
	"stall_ns_log2_15", "stall_ns_log2_16", "stall_ns_log2_17",	\
	"stall_ns_log2_18", "stall_ns_log2_19", "stall_ns_log2_20",	\
	"stall_ns_log2_21", "stall_ns_log2_22", "stall_ns_log2_23",	\
	"stall_ns_log2_24", "stall_ns_log2_25", "stall_ns_log2_26",	\
	"stall_ns_log2_27", "stall_ns_log2_28", "stall_ns_log2_29",	\
	"stall_ns_log2_30", "stall_ns_log2_31"

/**
 * mmp_count_stall - count a time
 * @profile: whose
 * @point: where
 * @first: index of the first of MMP_STALL_COUNTERS()
 * @ns: the time
 */
static inline void mmp_count_stall(const struct mmp_profile *profile,
				   const struct mmp_point *point,
				   unsigned int first, u64 ns)
{
	unsigned int log = clamp(ilog2(ns | 1), MMP_MIN_STALL, MMP_MAX_STALL);

	mmp_count(profile, point, first, ns);
	mmp_count(profile, point, first + 1 + log - MMP_MIN_STALL, 1);
}

/*
 * When tasks began to stall. They may sleep and go on elsewhere, so this is kept
 * by task. A slot that another task has is left alone: that stall is not timed.
 */
struct mmp_stamps {
	struct mmp_stamp {
		const struct task_struct *task;
		u64 ns;
	} of[BIT(8)];
};

static inline struct mmp_stamp *mmp_my_stamp(struct mmp_stamps *stamps)
{
	return &stamps->of[hash_ptr(current, ilog2(ARRAY_SIZE(stamps->of)))];
}

/**
 * mmp_stall_begins - current begins to stall, if it does not already
 * @stamps: where this is kept
 */
static inline void mmp_stall_begins(struct mmp_stamps *stamps)
{
	struct mmp_stamp *stamp = mmp_my_stamp(stamps);

	if (!READ_ONCE(stamp->task) && !cmpxchg(&stamp->task, NULL, current))
		stamp->ns = ktime_get_ns();
}

/**
 * mmp_stall_ends - current goes on
 * @stamps: where it is kept when it began
 *
 * Return: how long it took in ns, 0 if it did not stall or that is not known.
 */
static inline u64 mmp_stall_ends(struct mmp_stamps *stamps)
{
	struct mmp_stamp *stamp = mmp_my_stamp(stamps);
	u64 ns;

	if (likely(READ_ONCE(stamp->task) != current))
		return 0;
	ns = ktime_get_ns() - stamp->ns;
	/* Only now may others write there. */
	smp_store_release(&stamp->task, NULL);
	return ns;
}

#endif /* MMPOLICY_STALL_H */
