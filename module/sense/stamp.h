/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Start times ("stamps") of operations that a task has not finished.
 *
 * A task may sleep in between and continue on another CPU, so its stamp is in a
 * small table, in a slot hashed from the task. If another task has the slot,
 * the operation is not timed. A task that fails or exits never clears its
 * stamp, so after MMP_STAMP_NS any task may take the slot.
 */
#ifndef MMPOLICY_STAMP_H
#define MMPOLICY_STAMP_H

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/hash.h>
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/sched.h>

#define MMP_STAMP_NS	(10 * NSEC_PER_SEC)	/* age after which a slot can be taken */

/**
 * struct mmp_stamp - start of an operation
 * @since: start time in ns; 0 if the slot is free. The task that sets it may
 *	write the other members.
 * @task: the task
 * @what: a number chosen by the task
 * @seen: a number that the task may update until the end
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
 * mmp_stamp_mine - find the operation that current has started
 * @stamps: table of start times
 *
 * Return: its stamp, or %NULL.
 */
static inline struct mmp_stamp *mmp_stamp_mine(struct mmp_stamps *stamps)
{
	struct mmp_stamp *stamp = mmp_stamp_slot(stamps);

	return READ_ONCE(stamp->task) == current ? stamp : NULL;
}

/**
 * mmp_stamp_begin - start an operation of current, replacing an earlier one
 * @stamps: table of stamps
 * @what: a number to store
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
 * mmp_stamp_end - end an operation of current
 * @stamp: mmp_stamp_mine()
 *
 * Return: its length in ns.
 */
static inline u64 mmp_stamp_end(struct mmp_stamp *stamp)
{
	u64 ns = ktime_get_ns() - stamp->since;

	WRITE_ONCE(stamp->task, NULL);
	/* From here on other tasks may write to the slot. */
	smp_store_release(&stamp->since, 0);
	return ns;
}

#endif /* MMPOLICY_STAMP_H */
