// SPDX-License-Identifier: GPL-2.0
/* For kernels without the hooks: their functions call the module while a point is enabled. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitops.h>
#include <linux/errno.h>
#include <linux/printk.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/string.h>

#include "direct.h"
#include "fingerprint.h"

const char *const mmp_provider = "ftrace";

#define CALLS	4	/* of a point, and a NULL */

/*
 * How a point is attached. @check: conditions beyond needs.h. @found: runs when all needs are met.
 * @call: the functions that call the module, in the order in which they begin and end; with @known
 * the second ends before the first. @first, @begun: run after the first and the last of them have
 * begun. @known, @ended: run after the second and the first have ended.
 */
static const struct {
	int (*check)(char *reason, size_t size);
	void (*found)(void);
	struct mmp_call *call[CALLS];
	void (*first)(void);
	void (*begun)(void);
	void (*known)(void);
	void (*ended)(void);
} ways[MM_POLICY_POINTS] = {
	[MM_POLICY_ANON_ORDER] = {
		.check = mmp_fingerprint_check,
		.found = mmp_orders_found,
		/*
		 * On detach, sizes are closed first. The files call us until faults have stopped
		 * to, so writes to them count at once. A fault that has an answer fetches it in
		 * __thp_vma_allowable_orders(), which therefore ends last.
		 */
		.call = { &mmp_call_rare, &mmp_call_fault, &mmp_call_orders },
		.first = mmp_sizes_set_aside,
		.begun = mmp_sizes_ready,
		.known = mmp_sizes_closed,
		.ended = mmp_sizes_restore,
	},
	[MM_POLICY_THP_GFP] = {
		.found = mmp_thp_gfp_found,
		.call = { &mmp_call_thp_gfp, &mmp_call_charge },
	},
	[MM_POLICY_COMPACT] = {
		.found = mmp_compact_found,
		.call = { &mmp_call_compact },
	},
	[MM_POLICY_MADV_FREE] = {
		.found = mmp_madv_free_found,
		.call = { &mmp_call_madv_free },
	},
};

static char lacks[MM_POLICY_POINTS][128];	/* the reason, or nothing */

static struct mmp_call *const *calls_of(enum mm_policy_point point)
{
	return ways[point].call;
}

static bool is_stuck(enum mm_policy_point point)
{
	struct mmp_call *const *call;

	for (call = ways[point].call; *call; call++)
		if ((*call)->stuck)
			return true;
	return false;
}

const char *mmp_provider_lacks(enum mm_policy_point point)
{
	if (point == MM_POLICY_ANON_PAGES)
		point = MM_POLICY_ANON_ORDER;
	if (*lacks[point])
		return lacks[point];
	if (is_stuck(point))
		return "ftrace could not end the last use of it: see the kernel's log";
	return mmp_watch_ftrace();
}

/* What rules out all points: the ways here are of no use there, or were never tried. */
static const char *ruled_out(void)
{
	if (IS_ENABLED(CONFIG_LTO_CLANG))
		return "the kernel was built with LTO, so functions may have copies";
	return mmp_arch_lacks();
}

static int point_find(enum mm_policy_point point, char *reason, size_t size)
{
	struct mmp_call *const *call;
	int err = mmp_needs_find(point, reason, size);

	for (call = ways[point].call; *call && !err; call++)
		err = mmp_call_find(*call, reason, size);
	if (!err && ways[point].check)
		err = ways[point].check(reason, size);
	if (!err)
		ways[point].found();
	return err;
}

static void lacks_fill(void)
{
	const char *all = ruled_out() ?: mmp_prototypes_init();
	int i;

	for (i = 0; i < MM_POLICY_POINTS; i++) {
		mmp_functions_begin(i);
		if (all && ways[i].found)
			strscpy(lacks[i], all);
		else if (i == MM_POLICY_ANON_ORDER && !has_transparent_hugepage())
			strscpy(lacks[i], "the CPU has no pages of PMD size");
		else if (!point_find(i, lacks[i], sizeof(lacks[i])))
			*lacks[i] = '\0';
		else
			mmp_functions_drop();
	}
	mmp_prototypes_exit();
}

/**
 * mm_policy_register - find out what can be had here; all points stay off
 * @ops: stays valid until mm_policy_unregister() has returned
 * Return: 0; -EINVAL for another ABI.
 */
int mm_policy_register(const struct mm_policy_ops *ops)
{
	if (ops->abi != MM_POLICY_ABI)
		return -EINVAL;
	lacks_fill();
	return 0;
}

static void end_call(struct mmp_call *call, void (*then)(void))
{
	if (call)
		mmp_call_end(call);
	if (then)
		then();
}

/* Ends the calls that have begun: a grace period for each. */
static void end_calls(enum mm_policy_point point)
{
	struct mmp_call *const *call = ways[point].call;
	bool second = ways[point].known;

	end_call(call[second], ways[point].known);
	end_call(call[!second], ways[point].ended);
	end_call(call[2], NULL);
}

static int begin_calls(enum mm_policy_point point)
{
	struct mmp_call *const *call;
	int err = 0;

	for (call = ways[point].call; *call && !err; call++) {
		err = mmp_call_begin(*call);
		if (call == ways[point].call && ways[point].first && !err)
			ways[point].first();
	}
	if (err) {
		mmp_attach_failed(point, err);
		end_calls(point);
	} else if (ways[point].begun) {
		ways[point].begun();
	}
	return err;
}

/* Tries again to end calls that ftrace has refused to end. Is any of them left? */
static bool retry_calls(void)
{
	struct mmp_call *const *call;
	bool left = false;
	int point;

	for (point = 0; point < MM_POLICY_POINTS; point++)
		for (call = ways[point].call; *call; call++)
			left |= !mmp_call_retry(*call);
	return left;
}

static const struct mmp_attach how = {
	.begin = begin_calls,
	.end = end_calls,
	.retry = retry_calls,
	.lacks = mmp_provider_lacks,
};

void mmp_provider_watch(const struct mmp_watcher *watcher)
{
	mmp_watch_find(calls_of, watcher, mmp_attach_retry);
	mmp_attach_init(&how, watcher);
}

/**
 * mm_policy_unregister - return to stock behaviour
 * @ops: none of its callbacks runs once this has returned
 *
 * This waits for ftrace, and for tasks that wait for memory in an entry.
 *
 * Where ftrace refuses to end a call at this late moment, the text of the module is in use
 * for good: this does not return then.
 */
void mm_policy_unregister(const struct mm_policy_ops *ops)
{
	int point;

	for (point = 0; point < MM_POLICY_POINTS; point++)
		mm_policy_enable(ops, point, false);
	mmp_attach_exit();
	mmp_watch_exit();
	mmp_attach_exit();	/* the last look may have asked for another attempt */
	if (retry_calls()) {
		pr_emerg("the module cannot be unloaded until a reboot\n");
		for (;;)
			schedule_timeout_idle(MAX_SCHEDULE_TIMEOUT);
	}
	mmp_calls_wait();
	synchronize_rcu();
}
