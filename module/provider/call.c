// SPDX-License-Identifier: GPL-2.0
/*
 * Direct ftrace calls: finds, attaches, checks and detaches calls from kernel
 * functions to entry code of the module.
 */
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

/*
 * Kernel functions of anon_order that are called rarely; they share one entry,
 * which tells them apart by this order (entry.S).
 */
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
 * mmp_call_find - test whether ftrace can call the entry from all functions
 * @call: the functions to hook, and their entry
 * @reason: buffer for the reason of an error
 * @size: size of @reason
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
 * mmp_call_original - find the address where a function continues after it has
 * called its entry
 * @call: the call
 * @i: index of the function
 *
 * Context: after mmp_call_find().
 * Return: an address to call in place of the function, without calling the
 * entry again. Only direct calls may use it, as no function begins there.
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
 * mmp_call_missing - find a function that should call its entry, and does not
 * @call: the call
 *
 * Context: any; safe during concurrent mmp_call_begin() and mmp_call_end().
 * Return: the name of the function; %NULL if all functions call their entry, or
 * the call is not attached.
 */
const char *mmp_call_missing(const struct mmp_call *call)
{
	const char *missing;

	/*
	 * Pairs with mmp_call_begin(), which patches the site before it sets @on: if @on is true,
	 * the call must be there.
	 */
	if (!smp_load_acquire(&call->on))
		return NULL;
	missing = call_missing(call);
	/*
	 * Pairs with mmp_call_end(), which clears @on before it patches the site: if @on is still
	 * true, no call was being detached.
	 */
	smp_rmb();
	return READ_ONCE(call->on) ? missing : NULL;
}

/*
 * ftrace calls this if a livepatch wants one of the hooked functions. The livepatch gets it, and
 * watch.c soon returns the point to stock; this function cannot do so, as it runs under ftrace's
 * lock.
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

/*
 * Pins the module after ftrace has refused to detach a call, because the
 * functions still call the entry.
 */
static void call_keep(struct mmp_call *call, int err)
{
	__module_get(THIS_MODULE);
	WRITE_ONCE(call->stuck, true);
	if (err != -EFAULT)	/* -EFAULT: a call is missing, which watch.c reports */
		pr_err("ftrace cannot detach the call from %s (error %d), so the module stays loaded\n",
		       mmp_found_name(call->need[0]), err);
}

/**
 * mmp_call_begin - attach the entry to the hooked functions
 * @call: the functions and their entry
 *
 * A PERMANENT ftrace_ops keeps kernel.ftrace_enabled from being set to 0. If it
 * is 0 already, ftrace registers the entry without patching anything, so this
 * checks each site.
 * Context: may sleep. Functions that are running already continue without the
 * entry.
 * Return: 0, -EBUSY if another direct caller or a livepatch is there,
 * -EOPNOTSUPP if ftrace is off, or another error of ftrace.
 */
int mmp_call_begin(struct mmp_call *call)
{
	int i, err = 0;

	if (call->stuck)
		return -EOPNOTSUPP;
	/* Clears the data that ftrace has left from the last attach. */
	call->ops = (struct ftrace_ops){ .ops_func = call_share };
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
 * Returns true if a task is still inside an entry function of the module. The calls are detached,
 * so no task enters now, and the sum only falls. A task that leaves during the sum may still be
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
 * mmp_calls_wait - wait until no task is inside the entries of detached calls
 *
 * ftrace has waited until each task on the way into an entry is counted or has
 * left. Functions called from an entry sleep for memory at most, never for
 * something that user space holds.
 * Context: at unload; may sleep.
 */
void mmp_calls_wait(void)
{
	while (somebody_inside())
		msleep(20);
	/* tasks that are no longer counted must still return from an entry */
	synchronize_rcu_tasks();
}

/**
 * mmp_call_retry - try again to detach an entry that ftrace has refused to detach
 * @call: the functions and their entry
 *
 * Context: in the worker of attach.c, or after the worker has ended; may sleep.
 * Return: true if the entry is detached.
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
 * mmp_call_end - detach the entry from the hooked functions
 * @call: the functions and their entry; does nothing if not attached
 *
 * If ftrace refuses, the module is pinned until mmp_call_retry() has succeeded.
 * Waits for one grace period of RCU tasks, so no task is on its way to the
 * entry afterwards.
 * Context: may sleep for long. mmp_calls_wait() must follow before the module
 * is freed.
 */
void mmp_call_end(struct mmp_call *call)
{
	int err;

	if (!call->on)
		return;
	WRITE_ONCE(call->on, false);
	/* Pairs with mmp_call_missing(). */
	smp_wmb();
	/*
	 * If other code has removed a call from a function, ftrace would report a bug, so do not
	 * ask it to detach.
	 */
	err = call_missing(call) ? -EFAULT : call_unregister(call);
	if (err) {
		call_keep(call, err);
		synchronize_rcu_tasks();	/* ftrace has not waited, so wait here */
	}
}
