// SPDX-License-Identifier: GPL-2.0
/* The kernel has no hooks: functions of it call the module while a point is enabled. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitops.h>
#include <linux/errno.h>
#include <linux/printk.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <asm/cpufeature.h>

#include "direct.h"
#include "fingerprint.h"

const char *const mmp_provider = "ftrace";

#define CALLS	8	/* of a point, and a NULL */

/*
 * How a point is had: what is looked at beside needs.h; what is done when all is found; which
 * functions call the module, in the order in which they begin; what is done before the first
 * has begun, after the last has, before the last ends, and after the first has ended.
 */
static const struct {
	int (*check)(char *reason, size_t size);
	void (*found)(void);
	struct mmp_call *call[CALLS];
	void (*prepare)(void);
	void (*begun)(void);
	void (*ending)(void);
	void (*ended)(void);
} ways[MM_POLICY_POINTS] = {
	[MM_POLICY_ANON_ORDER] = {
		.check = mmp_fingerprint_check,
		.found = mmp_orders_found,
		.call = {
			/* What is written to the files goes on by the call for khugepaged. */
			&mmp_call_khugepaged, &mmp_call_files, &mmp_call_fault,
			&mmp_call_huge, &mmp_call_swapin, &mmp_call_collapse,
			&mmp_call_orders,
		},
		.prepare = mmp_sizes_set_aside,
		.begun = mmp_sizes_ready,
		.ending = mmp_sizes_close,
		.ended = mmp_sizes_restore,
	},
	[MM_POLICY_THP_GFP] = {
		.found = mmp_thp_gfp_found,
		.call = {
			&mmp_call_reclaim, &mmp_call_node_reclaim, &mmp_call_charge,
			&mmp_call_thp_gfp,
		},
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
static unsigned long hooked;			/* a bit for each point */

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
	if (cpu_feature_enabled(X86_FEATURE_XENPV))
		return "page tables of Xen PV are not supported";
	if (cpu_feature_enabled(X86_FEATURE_CALL_DEPTH))
		return "the kernel counts the depth of calls (retbleed=stuff)";
	return NULL;
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

void mmp_provider_watch(void (*lost)(enum mm_policy_point point, const char *why))
{
	mmp_watch_find(calls_of, lost);
}

/* Ends the calls that have begun, from the last to the first. */
static void end_calls(enum mm_policy_point point)
{
	int i;

	for (i = CALLS - 1; i >= 0; i--)
		if (ways[point].call[i])
			mmp_call_end(ways[point].call[i]);
	mmp_calls_wait(ways[point].call);
	if (ways[point].ended)
		ways[point].ended();
}

int mmp_provider_hook(enum mm_policy_point point)
{
	struct mmp_call *const *call;
	int err = 0;

	if (mmp_provider_lacks(point))
		return -EOPNOTSUPP;
	if (test_bit(point, &hooked))
		return 0;
	if (ways[point].prepare)
		ways[point].prepare();
	for (call = ways[point].call; *call && !err; call++)
		err = mmp_call_begin(*call);
	if (err) {
		end_calls(point);
		return err;
	}
	if (ways[point].begun)
		ways[point].begun();
	__set_bit(point, &hooked);
	mmp_watch(true);
	return 0;
}

void mmp_provider_unhook(enum mm_policy_point point)
{
	if (!__test_and_clear_bit(point, &hooked))
		return;
	if (!hooked)
		mmp_watch(false);
	if (ways[point].ending)
		ways[point].ending();
	end_calls(point);
}

void mmp_provider_orders(unsigned long orders)
{
	if (test_bit(MM_POLICY_ANON_ORDER, &hooked) &&
	    !mmp_provider_lacks(MM_POLICY_ANON_ORDER))
		mmp_sizes_open(orders);
}

/**
 * mm_policy_unregister - back to what mm does by itself
 * @ops: no callback of it runs once this has returned
 *
 * Where ftrace refuses to end a call at this late moment, the text of the module is in use
 * for good: this does not return then.
 */
void mm_policy_unregister(const struct mm_policy_ops *ops)
{
	struct mmp_call *const *call;
	bool stuck = false;
	int point;

	mmp_watch(false);
	mmp_watch_exit();
	for (point = 0; point < MM_POLICY_POINTS; point++) {
		mm_policy_enable(ops, point, false);
		mmp_provider_unhook(point);
		for (call = ways[point].call; *call; call++)
			stuck |= !mmp_call_retry(*call);
	}
	synchronize_rcu();
	if (!stuck)
		return;
	pr_emerg("the module cannot be unloaded until a reboot\n");
	for (;;)
		schedule_timeout_idle(MAX_SCHEDULE_TIMEOUT);
}
