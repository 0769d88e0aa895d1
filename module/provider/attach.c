// SPDX-License-Identifier: GPL-2.0
/*
 * Attaches and detaches the hooks of a point in a worker. ftrace waits there
 * until each task has slept or been in user mode, which a busy process in a
 * long system call may delay without limit. No lock is held during that wait,
 * and writers of files wait for the worker with a time limit.
 *
 * Requests only set or clear a bit per point, and the worker acts on the bits
 * as it finds them. So if the hooks of a point are released and requested again
 * before the worker gets to the point, they stay attached. If the worker is
 * detaching them already, it attaches them again afterwards.
 */
#include <linux/bitops.h>
#include <linux/cleanup.h>
#include <linux/jiffies.h>
#include <linux/sched/signal.h>
#include <linux/spinlock.h>
#include <linux/sysfs.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "direct.h"

static void attach_work(struct work_struct *work);
static DECLARE_WORK(worker, attach_work);
static DECLARE_WAIT_QUEUE_HEAD(changed);

static const struct mmp_attach *attach;
static const struct mmp_watcher *watcher;

static DEFINE_SPINLOCK(attach_lock);
/* State of the worker, under attach_lock. Bitmaps have a bit for each point. */
static unsigned long wanted;		/* points whose hooks are requested */
/* points whose hooks are attached, or are being detached by the worker */
static unsigned long called;
/* the point whose hooks the worker attaches or detaches now; -1: none */
static int at = -1;
static bool busy;			/* true while a request is pending or in progress */
/* errno of the last attempt to attach the hooks of each point */
static int failed[MM_POLICY_POINTS];
static unsigned long opened;		/* bitmap of orders that policies may request */

static void attach_wake(void)
{
	lockdep_assert_held(&attach_lock);
	busy = true;
	queue_work(mmp_unbound_wq, &worker);
}

/*
 * Returns true if the hooks of a point are attached, so policies can be asked
 * there.
 */
bool mmp_provider_hooked(enum mm_policy_point point)
{
	bool hooked;

	spin_lock(&attach_lock);
	hooked = test_bit(point, &called) && at != point;
	spin_unlock(&attach_lock);
	return hooked;
}

/*
 * Returns true while hooks of a point are attached, or being detached, that no
 * profile needs now.
 */
bool mmp_provider_detaching(void)
{
	bool detaching;

	spin_lock(&attach_lock);
	detaching = (called & ~wanted) || (at >= 0 && !test_bit(at, &wanted));
	spin_unlock(&attach_lock);
	return detaching;
}

void mmp_provider_hook(enum mm_policy_point point)
{
	spin_lock(&attach_lock);
	if (!test_bit(point, &wanted)) {
		__set_bit(point, &wanted);
		failed[point] = 0;
		attach_wake();
	}
	spin_unlock(&attach_lock);
}

void mmp_provider_unhook(enum mm_policy_point point)
{
	spin_lock(&attach_lock);
	if (test_bit(point, &wanted)) {
		__clear_bit(point, &wanted);
		if (point == MM_POLICY_ANON_ORDER)
			mmp_sizes_close();
		attach_wake();
	}
	spin_unlock(&attach_lock);
}

/*
 * Enables the folio sizes that policies may request, if the hooks of anon_order
 * are attached. The caller holds attach_lock.
 */
static void attach_open(void)
{
	if (test_bit(MM_POLICY_ANON_ORDER, &wanted) && test_bit(MM_POLICY_ANON_ORDER, &called) &&
	    at != MM_POLICY_ANON_ORDER && !mmp_watch_ftrace())
		mmp_sizes_open(opened);
}

void mmp_provider_orders(unsigned long orders)
{
	spin_lock(&attach_lock);
	opened = orders;
	attach_open();
	spin_unlock(&attach_lock);
}

static bool attach_is_decided(enum mm_policy_point point)
{
	bool decided;

	spin_lock(&attach_lock);
	decided = !busy || !test_bit(point, &wanted) || (test_bit(point, &called) && at != point);
	spin_unlock(&attach_lock);
	return decided;
}

int mmp_provider_wait_for(enum mm_policy_point point, unsigned int ms)
{
	int err;

	if (wait_event_killable_timeout(changed, attach_is_decided(point),
					msecs_to_jiffies(ms)) < 0)
		return -EINTR;
	spin_lock(&attach_lock);
	err = test_bit(point, &wanted) ? 0 : failed[point];
	spin_unlock(&attach_lock);
	return err;
}

void mmp_provider_wait(unsigned int ms)
{
	wait_event_killable_timeout(changed, !READ_ONCE(busy), msecs_to_jiffies(ms));
}

/*
 * Returns the next point whose hooks the worker must attach or detach, or -1 if
 * there is none. Wakes up writers that wait for the previous point.
 */
static int attach_next(void)
{
	int point, next = -1;

	spin_lock(&attach_lock);
	for (point = 0; point < MM_POLICY_POINTS && next < 0; point++)
		if (test_bit(point, &wanted) != test_bit(point, &called))
			next = point;
	at = next;
	busy = next >= 0;
	spin_unlock(&attach_lock);
	wake_up_all(&changed);
	return next;
}

/*
 * Records and reports that the hooks of a point have been attached, or that
 * this has failed with @err.
 */
static void attach_done(enum mm_policy_point point, int err)
{
	char why[64];

	spin_lock(&attach_lock);
	at = -1;
	if (!err)
		__set_bit(point, &called);
	if (point == MM_POLICY_ANON_ORDER)
		attach_open();
	spin_unlock(&attach_lock);
	if (!err) {
		watcher->ready(point);
		return;
	}
	snprintf(why, sizeof(why), err == -EBUSY ?
		 "another user of ftrace has one of its functions" :
		 "ftrace returned error %d", err);
	watcher->lost(point, why);
}

/**
 * mmp_attach_failed - report that the hooks of a point cannot be attached
 * @point: the point
 * @err: the errno
 *
 * Context: in the worker, before it detaches the hooks attached so far, so that
 * waiters return first.
 */
void mmp_attach_failed(enum mm_policy_point point, int err)
{
	spin_lock(&attach_lock);
	failed[point] = err;
	__clear_bit(point, &wanted);
	spin_unlock(&attach_lock);
	wake_up_all(&changed);
}

static int attach_begin(enum mm_policy_point point)
{
	if (!attach->lacks(point))
		return attach->begin(point);
	mmp_attach_failed(point, -EOPNOTSUPP);
	return -EOPNOTSUPP;
}

static void attach_turn(enum mm_policy_point point)
{
	if (!test_bit(point, &called)) {
		mmp_watch(true);
		attach_done(point, attach_begin(point));
		return;
	}
	attach->end(point);
	spin_lock(&attach_lock);
	__clear_bit(point, &called);
	spin_unlock(&attach_lock);
}

static void attach_work(struct work_struct *work)
{
	int point;

	attach->retry();
	while ((point = attach_next()) >= 0)
		attach_turn(point);
	mmp_watch(READ_ONCE(called));
}

/**
 * mmp_attach_retry - try again to detach hooks that ftrace has refused to
 * detach
 *
 * Context: any.
 */
void mmp_attach_retry(void)
{
	queue_work(mmp_unbound_wq, &worker);
}

/**
 * mmp_attach_init - set the functions that attach hooks and that get the
 * results
 * @how: attaches and detaches the hooks of a point
 * @who: notified when the hooks of a point are attached, or cannot be
 */
void mmp_attach_init(const struct mmp_attach *how, const struct mmp_watcher *who)
{
	attach = how;
	watcher = who;
}

/**
 * mmp_attach_exit - detach all hooks, and wait until they are detached
 *
 * Context: at unload, with no point requested; may sleep for long.
 */
void mmp_attach_exit(void)
{
	int point;

	for (point = 0; point < MM_POLICY_POINTS; point++)
		mmp_provider_unhook(point);
	flush_work(&worker);
}

#ifdef CONFIG_TASKS_RCU
static bool holds_up(const struct task_struct *task)
{
	return READ_ONCE(task->rcu_tasks_holdout);
}
#else
static bool holds_up(const struct task_struct *task)
{
	return false;
}
#endif

ssize_t mmp_provider_blockers(char *buf)
{
	struct task_struct *process, *task;
	ssize_t len = 0;

	if (!READ_ONCE(busy))
		return 0;
	guard(rcu)();
	for_each_process_thread(process, task) {
		if (holds_up(task))
			len += sysfs_emit_at(buf, len, "%d %s\n", task_pid_nr(task), task->comm);
		if (len > PAGE_SIZE - 64)
			break;
	}
	return len;
}
