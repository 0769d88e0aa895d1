// SPDX-License-Identifier: GPL-2.0
/*
 * Looks again and again whether the functions still call their entries. If ftrace has been
 * shut down, or a call is gone, sizes that are open would be everybody's: they are closed at
 * once, and the point goes back to stock. It does so too for a livepatch that wants one of
 * the functions.
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
static bool leaving;		/* the module goes */
static int *ftrace_disabled;	/* the kernel's: set for good by a bug of anybody */
static int *ftrace_on;		/* kernel.ftrace_enabled */
static struct mmp_call *const *(*calls_of)(enum mm_policy_point point);
static const struct mmp_watcher *watcher;
static void (*retry_calls)(void);

/**
 * mmp_watch_find - find the functions of ftrace that a check needs
 * @calls: says which functions call the module for a point; the last is %NULL
 * @who: told of a point that has to go back to stock
 * @retry: called while there are calls that ftrace has refused to end
 *
 * Context: before anything else here; may sleep.
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
		why = "a function does not call the module any more, which stays until it does";
	if (!why && READ_ONCE(call->wanted))
		why = "a livepatch wants one of its functions";
	return why;
}

/* Closes sizes first, which does not wait. A call that ftrace cannot end has to stay. */
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

/* Is there a call that could not be ended, and that can be tried again? */
static bool watch_retry(enum mm_policy_point point)
{
	struct mmp_call *const *call;

	if (ftrace_disabled && READ_ONCE(*ftrace_disabled))
		return false;	/* it stays disabled until a reboot */
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
 * mmp_watch - start or stop looking
 * @on: start; after a stop, a look that is under way may still report a loss
 *
 * Context: one call at a time.
 */
void mmp_watch(bool on)
{
	WRITE_ONCE(watching, on);
	if (on && !READ_ONCE(leaving))
		mod_delayed_work(mmp_unbound_wq, &watch, PERIOD);
}

/* Context: the module goes; may sleep, and not under what @on_loss takes. */
void mmp_watch_exit(void)
{
	WRITE_ONCE(leaving, true);
	cancel_delayed_work_sync(&watch);
}
