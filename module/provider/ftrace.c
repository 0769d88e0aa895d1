// SPDX-License-Identifier: GPL-2.0
/*
 * Provider for kernels without the mm_policy hooks: kernel functions call the
 * module through ftrace while a point is in use.
 */
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

#define CALLS	5	/* most calls of one point, and a terminating NULL */

#ifdef MMP_FOLDS
#define CALL_OF_FOLDS	(&mmp_call_fold)
#else
#define CALL_OF_FOLDS	NULL
#endif

/*
 * How to attach and detach the hooks of a point:
 *
 * @check: tests conditions beyond needs.h
 * @found: called once all needs are met
 * @call: calls of the point, in the order in which they are attached. They are
 *	detached in this order, too, except that the second one is detached
 *	before the first if @known is set.
 * @first: called after the first call was attached
 * @begun: called after the last call was attached
 * @known: called after the second call was detached
 * @ended: called after the first call was detached
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
		 * On detach, the sizes for policies are disabled first. The
		 * sysfs files call the module until no fault does, so that
		 * writes to them take effect at once. A fault that has a
		 * policy's answer uses it in __thp_vma_allowable_orders(), so
		 * that call is detached after those of faults and files.
		 */
		.call = { &mmp_call_rare, &mmp_call_fault, &mmp_call_orders, CALL_OF_FOLDS },
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

/* the reason why a point is unavailable; empty if it is available */
static char lacks[MM_POLICY_POINTS][128];

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
		return "ftrace could not detach the hooks of this point: see the kernel's log";
	return mmp_watch_ftrace();
}

/* Returns why no point is available on this kernel, or NULL if nothing rules out all points. */
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
 * mm_policy_register - find out which points this kernel supports; all points
 * stay off
 * @ops: the callbacks; must stay valid until mm_policy_unregister() has
 *	returned
 *
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

/* Detaches all calls of a point, and waits for a grace period for each call. */
static void end_calls(enum mm_policy_point point)
{
	struct mmp_call *const *call = ways[point].call;
	bool second = ways[point].known;

	end_call(call[second], ways[point].known);
	end_call(call[!second], ways[point].ended);
	end_call(call[2], NULL);
	end_call(call[3], NULL);
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

/*
 * Tries again to detach entries that ftrace has refused to detach. Returns true
 * if one is still attached.
 */
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
 * @ops: the callbacks; none of them runs once this has returned
 *
 * Waits for ftrace, and for tasks that wait for memory in an entry.
 *
 * If ftrace still refuses to detach a call, kernel functions continue to use the
 * module's code, so this function never returns.
 */
void mm_policy_unregister(const struct mm_policy_ops *ops)
{
	int point;

	for (point = 0; point < MM_POLICY_POINTS; point++)
		mm_policy_enable(ops, point, false);
	mmp_attach_exit();
	mmp_watch_exit();
	/* the last check of watch.c may have queued another attempt to detach */
	mmp_attach_exit();
	if (retry_calls()) {
		pr_emerg("ftrace still calls the module, so it cannot be unloaded before a reboot\n");
		for (;;)
			schedule_timeout_idle(MAX_SCHEDULE_TIMEOUT);
	}
	mmp_calls_wait();
	synchronize_rcu();
}
