// SPDX-License-Identifier: GPL-2.0
/* Calls from functions of the kernel to entries of the module: find, begin, check, end them. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/ftrace.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/printk.h>
#include <linux/rcupdate.h>
#include <linux/string.h>

#include "direct.h"

unsigned long mmp_back_rare[MMP_FUNCTIONS];

/* The functions of anon_order outside single faults, in the order of entry.S. */
struct mmp_call mmp_call_rare = {
	.entry = mmp_entry_rare,
	.need = {
		MMP_NEED_huge, MMP_NEED_swapin, MMP_NEED_collapse, MMP_NEED_start_stop,
		MMP_NEED_show, MMP_NEED_store,
	},
	.back = mmp_back_rare,
};

static void *call_site(const struct mmp_call *call, int i)
{
	return mmp_site_of((void *)call->at[i]);
}

/**
 * mmp_call_find - see whether ftrace can call from the functions
 * @call: the functions
 * @reason: buffer for the reason of an error
 * @size: of @reason
 *
 * Context: after mmp_needs_find().
 * Return: 0 or -EOPNOTSUPP.
 */
int mmp_call_find(struct mmp_call *call, char *reason, size_t size)
{
	int i;

	for_each_function(call, i) {
		call->at[i] = (unsigned long)mmp_found(call->need[i]);
		if (call->back)
			call->back[i] = (unsigned long)mmp_call_original(call, i);
		if (!mmp_is_site(call_site(call, i))) {
			snprintf(reason, size, "ftrace cannot call from %s",
				 mmp_found_name(call->need[i]));
			return -EOPNOTSUPP;
		}
		mmp_functions_add(mmp_found_name(call->need[i]));
	}
	return 0;
}

/**
 * mmp_call_original - where a function goes on after it has called its entry
 * @call: which
 * @i: which of its functions
 *
 * Context: after mmp_call_find().
 * Return: to be called in place of the function, but directly: no function begins there.
 */
void *mmp_call_original(const struct mmp_call *call, int i)
{
	return call_site(call, i) + MMP_SITE_SIZE;
}

static const char *call_missing(const struct mmp_call *call)
{
	int i;

	for_each_function(call, i)
		if (!mmp_site_calls(call_site(call, i)))
			return mmp_found_name(call->need[i]);
	return NULL;
}

/**
 * mmp_call_missing - a function that should call its entry, and does not
 * @call: which
 *
 * Context: any; safe while others call mmp_call_begin() and mmp_call_end().
 * Return: its name; %NULL if all of them do, or none is to.
 */
const char *mmp_call_missing(const struct mmp_call *call)
{
	const char *missing;

	/* Pairs with mmp_call_begin(): the byte changed before. */
	if (!smp_load_acquire(&call->on))
		return NULL;
	missing = call_missing(call);
	/* Pairs with mmp_call_end(): the byte changes after @on does. */
	smp_rmb();
	return READ_ONCE(call->on) ? missing : NULL;
}

/*
 * A livepatch wants one of the functions. It may have it, and the point goes back to stock
 * when watch.c looks next. Not here, as ftrace's lock is held.
 */
static int call_share(MMP_OPS_FUNC_ARGS)
{
	struct mmp_call *call = container_of(op, struct mmp_call, ops);

	if (cmd == FTRACE_OPS_CMD_ENABLE_SHARE_IPMODIFY_SELF)
		return -EBUSY;
	if (cmd == FTRACE_OPS_CMD_ENABLE_SHARE_IPMODIFY_PEER)
		WRITE_ONCE(call->wanted, true);
	return 0;
}

static int call_unregister(struct mmp_call *call)
{
	int err = unregister_ftrace_direct(&call->ops, (unsigned long)call->entry, false);

	if (!err)
		ftrace_free_filter(&call->ops);
	return err;
}

/* ftrace did not end the call. Functions go on calling the entry, so the module has to stay. */
static void call_keep(struct mmp_call *call, int err)
{
	__module_get(THIS_MODULE);
	WRITE_ONCE(call->stuck, true);
	if (err != -EFAULT)	/* watch.c has reported this case */
		pr_err("ftrace does not end the call from %s (error %d): the module stays\n",
		       mmp_found_name(call->need[0]), err);
}

/**
 * mmp_call_begin - from now on the functions call their entry
 * @call: which
 *
 * With a PERMANENT caller, kernel.ftrace_enabled cannot be set to 0. If it is 0 already,
 * ftrace registers the entry and patches nothing, so each site is looked at.
 * Context: may sleep. A call that has begun before goes on without the entry.
 * Return: 0, -EBUSY if another direct caller or a livepatch is there, -EOPNOTSUPP if
 *	ftrace is off, or another error of ftrace.
 */
int mmp_call_begin(struct mmp_call *call)
{
	int i, err = 0;

	if (call->stuck)
		return -EOPNOTSUPP;
	call->ops = (struct ftrace_ops){ .ops_func = call_share };	/* ftrace leaves it used */
	call->wanted = false;
	for_each_function(call, i)
		err = err ?: ftrace_set_filter_ip(&call->ops, call->at[i], 0, 0);
	if (!err)
		err = register_ftrace_direct(&call->ops, (unsigned long)call->entry);
	if (err) {
		ftrace_free_filter(&call->ops);
		return err;
	}
	call->ops.flags |= FTRACE_OPS_FL_PERMANENT;
	/* Pairs with mmp_call_missing(). */
	smp_store_release(&call->on, true);
	if (!mmp_call_missing(call))
		return 0;
	WRITE_ONCE(call->on, false);
	err = call_unregister(call);
	if (err)
		call_keep(call, err);
	return -EOPNOTSUPP;
}

DEFINE_PER_CPU(long, mmp_inside);

/*
 * No task enters now, so the sum only falls. A task that leaves during the sum may still be
 * counted, but no task inside is missed.
 */
static bool somebody_inside(void)
{
	long sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(mmp_inside, cpu));
	return sum;
}

/**
 * mmp_calls_wait - wait until no task is in the entries of calls that have ended
 *
 * ftrace has waited until each task in an entry has been counted or has left. Functions that are
 * called there sleep for memory at most, never for something that user space holds.
 * Context: on exit of the module; may sleep.
 */
void mmp_calls_wait(void)
{
	while (somebody_inside())
		msleep(20);
	synchronize_rcu_tasks();	/* they are still to return from the entry */
}

/**
 * mmp_call_retry - end calls that could not be ended before
 * @call: which
 *
 * Context: in the worker of attach.c, or when that has ended; may sleep.
 * Return: have all of them ended?
 */
bool mmp_call_retry(struct mmp_call *call)
{
	if (!READ_ONCE(call->stuck))
		return true;
	if (call_missing(call) || call_unregister(call))
		return false;
	WRITE_ONCE(call->stuck, false);
	module_put(THIS_MODULE);
	return true;
}

/**
 * mmp_call_end - make the functions stop calling their entry
 * @call: which; if it has begun
 *
 * If ftrace refuses, the module is pinned until mmp_call_retry() has succeeded.
 * Waits for one grace period of RCU tasks: no task is on its way to the entry then.
 * Context: may sleep for long. mmp_calls_wait() before the module goes.
 */
void mmp_call_end(struct mmp_call *call)
{
	int err;

	if (!call->on)
		return;
	WRITE_ONCE(call->on, false);
	/* Pairs with mmp_call_missing(). */
	smp_wmb();
	/* Where other code has patched a function, ftrace would report a bug. */
	err = call_missing(call) ? -EFAULT : call_unregister(call);
	if (err) {
		call_keep(call, err);
		synchronize_rcu_tasks();	/* as without an error */
	}
}
