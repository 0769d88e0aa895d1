// SPDX-License-Identifier: GPL-2.0
/*
 * Checks every 100 ms that the hooked functions still call their entries. If
 * ftrace has shut down, or a call is gone, open sizes (sizes.c) would apply to
 * all tasks: the module closes them at once, and returns the point to stock. It
 * also returns the point to stock if a livepatch wants one of the functions.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jiffies.h>
#include <linux/printk.h>
#include <linux/workqueue.h>

#include "direct.h"

#define PERIOD	msecs_to_jiffies(100)

static void watch_look(struct work_struct *work);
static DECLARE_DELAYED_WORK(watch, watch_look);

static bool watching;
static bool leaving;		/* true once the module is being unloaded */
/* the kernel's flag: ftrace is off until a reboot after an internal error */
static int *ftrace_disabled;
static int *ftrace_on;		/* kernel.ftrace_enabled */
static struct mmp_call *const *(*calls_of)(enum mm_policy_point point);
static const struct mmp_watcher *watcher;
static void (*retry_calls)(void);

/**
 * mmp_watch_find - find the variables of ftrace that a check reads
 * @calls: returns the calls of a point; the last is %NULL
 * @who: notified of a point that must return to stock
 * @retry: called while there are calls that ftrace has refused to detach
 *
 * Context: before any other function of this file; may sleep.
 */
void mmp_watch_find(struct mmp_call *const *(*calls)(enum mm_policy_point point),
		    const struct mmp_watcher *who, void (*retry)(void))
{
	calls_of = calls;
	watcher = who;
	retry_calls = retry;
	ftrace_disabled = mmp_symbol("ftrace_disabled");
	ftrace_on = mmp_symbol("ftrace_enabled");
}

/**
 * mmp_watch_ftrace - check ftrace as a whole
 *
 * Return: the reason why it does not work, or %NULL.
 */
const char *mmp_watch_ftrace(void)
{
	if (ftrace_disabled && READ_ONCE(*ftrace_disabled))
		return "ftrace has shut itself down: see the kernel's log, and reboot";
	if (ftrace_on && !READ_ONCE(*ftrace_on))
		return "ftrace is off: set kernel.ftrace_enabled to 1";
	return NULL;
}

static const char *what_is_wrong(const struct mmp_call *call)
{
	const char *why = mmp_watch_ftrace();

	if (!READ_ONCE(call->on))
		return NULL;
	if (!why && mmp_call_missing(call))
		why = "a function no longer calls the module, which stays loaded until it does";
	if (!why && READ_ONCE(call->wanted))
		why = "a livepatch wants one of its functions";
	return why;
}

/*
 * Checks that the hooked functions of a point still call the module. If a call
 * is lost, first disables the sizes that are enabled for policies, which needs
 * no wait, and then reports the loss.
 */
static void watch_point(enum mm_policy_point point)
{
	struct mmp_call *const *call;
	const char *why = NULL;

	for (call = calls_of(point); *call && !why; call++)
		why = what_is_wrong(*call);
	if (!why)
		return;
	if (point == MM_POLICY_ANON_ORDER)
		mmp_sizes_close();
	watcher->lost(point, why);
}

/*
 * Returns true if ftrace has refused to detach a call of the point, and another
 * attempt may succeed.
 */
static bool watch_retry(enum mm_policy_point point)
{
	struct mmp_call *const *call;

	if (ftrace_disabled && READ_ONCE(*ftrace_disabled))
		return false;	/* ftrace stays disabled until a reboot */
	for (call = calls_of(point); *call; call++)
		if (READ_ONCE((*call)->stuck))
			return true;
	return false;
}

static void watch_look(struct work_struct *work)
{
	bool again = READ_ONCE(watching), retry = false;
	int point;

	for (point = 0; point < MM_POLICY_POINTS; point++) {
		watch_point(point);
		retry |= watch_retry(point);
	}
	mmp_sizes_follow();
	if (retry)
		retry_calls();
	if ((again || retry) && !READ_ONCE(leaving))
		mod_delayed_work(mmp_unbound_wq, &watch, PERIOD);
}

/**
 * mmp_watch - start or stop the periodic check
 * @on: true to start; after a stop, a check in progress may still report a loss
 *
 * Context: callers are serialised.
 */
void mmp_watch(bool on)
{
	WRITE_ONCE(watching, on);
	if (on && !READ_ONCE(leaving))
		mod_delayed_work(mmp_unbound_wq, &watch, PERIOD);
}

/*
 * Stops the periodic check at unload. Context: may sleep; under no lock that
 * &mmp_watcher.lost takes.
 */
void mmp_watch_exit(void)
{
	WRITE_ONCE(leaving, true);
	cancel_delayed_work_sync(&watch);
}
