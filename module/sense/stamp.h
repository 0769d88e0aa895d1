/* SPDX-License-Identifier: GPL-2.0 */
/*
 * When tasks began something, until they have done with it.
 *
 * They may sleep and go on elsewhere meanwhile, so this is kept by task, in a small
 * table. A place that another task has is left alone: that time is missed. What has
 * begun may never end here, as the task fails or exits, so a place can be taken
 * after some seconds, whoever had it.
 */
#ifndef MMPOLICY_STAMP_H
#define MMPOLICY_STAMP_H

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/hash.h>
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/sched.h>

#define MMP_STAMP_NS	(10 * NSEC_PER_SEC)	/* after which a place can be taken */

/**
 * struct mmp_stamp - that a task has begun something
 * @since: when, in ns; 0 for a place that is free. Who changes it may write the rest
 * @task: who
 * @what: of its choice
 * @seen: the same, while it lasts
 */
struct mmp_stamp {
	u64 since;
	const struct task_struct *task;
	unsigned long what;
	unsigned long seen;
};

struct mmp_stamps {
	struct mmp_stamp of[BIT(8)];
};

static inline struct mmp_stamp *mmp_stamp_place(struct mmp_stamps *stamps)
{
	return &stamps->of[hash_ptr(current, ilog2(ARRAY_SIZE(stamps->of)))];
}

/**
 * mmp_stamp_mine - what current has begun
 * @stamps: where this is kept
 *
 * Return: its stamp, or %NULL.
 */
static inline struct mmp_stamp *mmp_stamp_mine(struct mmp_stamps *stamps)
{
	struct mmp_stamp *stamp = mmp_stamp_place(stamps);

	return READ_ONCE(stamp->task) == current ? stamp : NULL;
}

/**
 * mmp_stamp_begin - current begins something, now and anew
 * @stamps: where this is kept
 * @what: what
 *
 * Return: false if another task has the place.
 */
static inline bool mmp_stamp_begin(struct mmp_stamps *stamps, unsigned long what)
{
	struct mmp_stamp *stamp = mmp_stamp_place(stamps);
	u64 old = READ_ONCE(stamp->since), now = ktime_get_ns();

	if (old && now - old < MMP_STAMP_NS && READ_ONCE(stamp->task) != current)
		return false;
	if (cmpxchg64(&stamp->since, old, now) != old)
		return false;
	stamp->what = what;
	stamp->seen = 0;
	WRITE_ONCE(stamp->task, current);
	return true;
}

/**
 * mmp_stamp_end - current has done with it
 * @stamp: mmp_stamp_mine()
 *
 * Return: how long it took, in ns.
 */
static inline u64 mmp_stamp_end(struct mmp_stamp *stamp)
{
	u64 ns = ktime_get_ns() - stamp->since;

	WRITE_ONCE(stamp->task, NULL);
	/* Only now may others write there. */
	smp_store_release(&stamp->since, 0);
	return ns;
}

#endif /* MMPOLICY_STAMP_H */
