/* SPDX-License-Identifier: GPL-2.0 */
/*
 * When a task began something that it has not ended yet.
 *
 * A task may sleep meanwhile, and continue on another CPU, so its stamp is in a small table,
 * at a slot that is chosen by the task. If another task has the slot, the time is not
 * taken. A task that fails or exits never ends what it began, so after MMP_STAMP_NS
 * any task may take its slot.
 */
#ifndef MMPOLICY_STAMP_H
#define MMPOLICY_STAMP_H

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/hash.h>
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/sched.h>

#define MMP_STAMP_NS	(10 * NSEC_PER_SEC)	/* after which a slot can be taken */

/**
 * struct mmp_stamp - a task has begun something
 * @since: when, in ns; 0 if the slot is free. Whoever changes it may write the other members
 * @task: which task
 * @what: any number that the task has chosen
 * @seen: any number that the task notes until it ends
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

static inline struct mmp_stamp *mmp_stamp_slot(struct mmp_stamps *stamps)
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
	struct mmp_stamp *stamp = mmp_stamp_slot(stamps);

	return READ_ONCE(stamp->task) == current ? stamp : NULL;
}

/**
 * mmp_stamp_begin - current begins something, now and anew
 * @stamps: where this is kept
 * @what: what
 *
 * Return: false if another task has the slot.
 */
static inline bool mmp_stamp_begin(struct mmp_stamps *stamps, unsigned long what)
{
	struct mmp_stamp *stamp = mmp_stamp_slot(stamps);
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
