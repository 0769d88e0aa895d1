// SPDX-License-Identifier: GPL-2.0
/*
 * The way back: all to what is after load, when somebody asks for it, when the
 * lease expires, or when the module goes.
 *
 * It waits for nobody: first all hooks are turned off, which needs neither memory
 * nor mmp_lock. What they asked is tidied up afterwards, when the last writer has
 * let go of it.
 *
 * After an expiry the tree is latched: whoever let the lease expire may still be
 * writing, or start anew without knowing, so all writes but the acknowledgment
 * fail.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cleanup.h>
#include <linux/printk.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/workqueue.h>

#include "control.h"

static DEFINE_MUTEX(state_lock);
static unsigned int resets;	/* that are under way; under state_lock */
static const char *state_before;	/* shown until then; under state_lock */
static bool expiry_to_do;

static struct {
	enum mm_policy_point point;
	char text[96];	/* empty: none */
} point_error;		/* under state_lock */

static const char *state_now(void)
{
	return mmp_latched() ? "expired" : mmp_switches_state();
}

/**
 * mmp_state - what the file "state" shows
 *
 * A reset or an expiry is over when it is seen here, also for the files of
 * profiles. Context: may sleep, but waits for no writer.
 */
const char *mmp_state(void)
{
	guard(mutex)(&state_lock);
	return resets ? state_before : state_now();
}

/* Content of the file "point_error". Context: may sleep, but waits for no writer. */
ssize_t mmp_point_error(char *buf)
{
	guard(mutex)(&state_lock);
	if (!*point_error.text)
		return sysfs_emit(buf, "\n");
	return sysfs_emit(buf, "%s: %s\n", mmp_parts->points[point_error.point]->name,
			  point_error.text);
}

static void point_error_set(enum mm_policy_point point, const char *text)
{
	guard(mutex)(&state_lock);
	point_error.point = point;
	strscpy(point_error.text, text);
}

/**
 * mmp_point_ready - the kernel calls us at a point from now on
 * @point: which
 *
 * Context: may sleep, but waits for nobody.
 */
void mmp_point_ready(enum mm_policy_point point)
{
	mmp_switch_hooked(point);
	guard(mutex)(&state_lock);
	if (point_error.point == point)
		*point_error.text = '\0';
}

/* The state during a reset: no policy decides. */
static const char *state_meanwhile(void)
{
	const char *now = state_now();

	return *now == 'a' ? "detaching" : now;
}

/* First half of the way back: no hook asks any more, so all behaves as stock at once. */
static void reset_begin(void)
{
	scoped_guard(mutex, &state_lock)
		if (!resets++)
			state_before = state_meanwhile();
	mmp_switches_halt();
}

/* Puts all points to stock, and then all else back. The caller holds mmp_lock. */
static void reset_all(void)
{
	mmp_profiles_to_stock();
	mmp_experiment_clear();
	mmp_unbind_all();
	mmp_lease_clear();
	WRITE_ONCE(expiry_to_do, false);
	point_error_set(0, "");
}

static void reset_end(void)
{
	mmp_profile_files_sweep();
	scoped_guard(mutex, &state_lock)
		resets--;
}

/**
 * mmp_reset - back to what is after load
 *
 * Context: may sleep; not in a write to a file of a profile.
 */
void mmp_reset(void)
{
	reset_begin();
	scoped_guard(mutex, &mmp_lock) {
		reset_all();
		mmp_latch(false);
		mmp_switches_resume();
	}
	reset_end();
}

/* Second half of the way back, in a worker: it may wait for mmp_lock, the expiry must not. */
static void reset_tidy(struct work_struct *work)
{
	scoped_guard(mutex, &mmp_lock) {
		if (READ_ONCE(expiry_to_do))
			reset_all();
		mmp_switches_resume();
	}
	reset_end();
}

static DECLARE_WORK(tidying, reset_tidy);

/**
 * mmp_reset_on_expiry - back to what is after load, as the lease has run out
 * @ms: how long it was
 *
 * Context: may sleep, but waits for nobody.
 */
void mmp_reset_on_expiry(unsigned int ms)
{
	reset_begin();
	mmp_latch(true);
	WRITE_ONCE(expiry_to_do, true);
	pr_warn("lease of %u ms expired: all is stock until 1 is written to reset\n", ms);
	queue_work(mmp_unbound_wq, &tidying);
}

/**
 * mmp_reset_on_loss - a point back to stock, as the kernel does not ask there, or not any more
 * @point: which
 * @why: the reason, for the log
 *
 * An experiment that times faults needs the point, whatever its arms have there.
 * Context: may sleep; waits for writers.
 */
void mmp_reset_on_loss(enum mm_policy_point point, const char *why)
{
	bool more;

	scoped_guard(mutex, &mmp_lock) {
		if (!mmp_switch_is_on(point))
			return;
		pr_warn("%s goes back to stock: %s\n", mmp_parts->points[point]->name, why);
		more = mmp_switch_is_held(point) || mmp_point_to_stock(point, NULL);
	}
	if (more)
		mmp_reset();
	point_error_set(point, why);
}

/* First half of the way back when the module is unloaded: refuses all writes too. */
void mmp_reset_for_good(void)
{
	mmp_latch(true);
	reset_begin();
}

/* The second half, when nobody can write any more and there is no lease. */
void mmp_reset_exit(void)
{
	flush_work(&tidying);
	scoped_guard(mutex, &mmp_lock)
		reset_all();
	reset_end();
}
