// SPDX-License-Identifier: GPL-2.0
/*
 * Reset: restores the state that the module had right after it was loaded. It
 * runs at a write to the file "reset", when the lease expires, and at unload.
 *
 * The first half of a reset turns all hooks off at once. It allocates no memory
 * and does not take mmp_lock, so no writer can delay it. The second half waits
 * until the current writer has released mmp_lock, and then restores settings
 * and drops bindings. After an expiry, a worker runs it.
 *
 * After an expiry, all writes fail until an administrator writes to "reset":
 * the process that missed its lease may still be writing, or may restart
 * without noticing.
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
static unsigned int resets;	/* number of resets in progress; under state_lock */
/* text of the file "state" during a reset; under state_lock */
static const char *state_before;
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
 * mmp_state - return the text of the sysfs file "state"
 *
 * Once a reset is no longer shown here, the files of profiles show its result
 * too.
 * Context: may sleep, but waits for no writer.
 * Return: a word listed in docs/sysfs-abi.txt under "state".
 */
const char *mmp_state(void)
{
	guard(mutex)(&state_lock);
	return resets ? state_before : state_now();
}

/*
 * Prints the text of the sysfs file "point_error": the point and its last error, or an empty line.
 * Context: may sleep, but waits for no writer.
 */
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
 * mmp_point_ready - turn a point on once its hooks are attached, and clear its error
 *
 * @point: the point
 *
 * Context: may sleep, but never takes mmp_lock.
 */
void mmp_point_ready(enum mm_policy_point point)
{
	mmp_switch_hooked(point);
	guard(mutex)(&state_lock);
	if (point_error.point == point)
		*point_error.text = '\0';
}

/*
 * Returns the state to show while a reset runs. All hooks are off then, so
 * "active" and "attaching" become "detaching".
 */
static const char *state_meanwhile(void)
{
	const char *now = state_now();

	return *now == 'a' ? "detaching" : now;
}

/*
 * First half of a reset: turns all hooks off, so the kernel behaves as stock at
 * once.
 */
static void reset_begin(void)
{
	scoped_guard(mutex, &state_lock)
		if (!resets++)
			state_before = state_meanwhile();
	mmp_switches_halt();
}

/*
 * Sets all points to stock; drops the experiment, all bindings and the lease.
 * Under mmp_lock.
 */
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
 * mmp_reset - restore the state that the module had after it was loaded
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

/*
 * Second half of the reset after the lease has expired: restores the settings. It runs in a worker,
 * because it waits for mmp_lock, and the first half must not wait for that.
 */
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
 * mmp_reset_on_expiry - return all points to stock when the lease has expired
 * @ms: length of the lease in ms
 *
 * Context: may sleep, but never takes mmp_lock.
 */
void mmp_reset_on_expiry(unsigned int ms)
{
	reset_begin();
	mmp_latch(true);
	WRITE_ONCE(expiry_to_do, true);
	pr_warn("lease of %u ms expired: all points are stock, and writes fail until 1 is written to /sys/kernel/mmpolicy/reset\n",
		ms);
	queue_work(mmp_unbound_wq, &tidying);
}

/**
 * mmp_reset_on_loss - set a point to stock when its hooks were refused or lost
 * @point: the point
 * @why: the reason, for the log
 *
 * An experiment that times faults needs the hooks even without a policy, so it
 * ends too.
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

/* First half of the reset at unload: turns all hooks off, and refuses all writes from now on. */
void mmp_reset_for_good(void)
{
	mmp_latch(true);
	reset_begin();
}

/*
 * Second half of the reset at unload: restores the settings. By now, no write to a file is running,
 * and no lease can expire.
 */
void mmp_reset_exit(void)
{
	flush_work(&tidying);
	scoped_guard(mutex, &mmp_lock)
		reset_all();
	reset_end();
}
