// SPDX-License-Identifier: GPL-2.0
/*
 * Switches of the points: they turn the static keys of the hooks on and off. A
 * hook is on while some profile has a policy at its point and the provider has
 * attached its hooks. During a reset, all hooks are off.
 */
#include <linux/bitops.h>
#include <linux/cleanup.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>

#include "../provider/provider.h"
#include "../sense/observe.h"
#include "control.h"

/*
 * Protects the switches. A holder must not allocate memory or wait for another
 * writer, so that the hooks can be turned off at any time.
 */
static DEFINE_MUTEX(switches_lock);
/* bitmap of points whose hooks are on; under switches_lock */
static unsigned long hooks_on;
/* bitmap of points whose hooks a policy needs; under switches_lock */
static unsigned long hooks_wanted;
/* bitmap of points whose hooks stay on without a policy; under mmp_lock */
static unsigned long hooks_held;
/* number of resets in progress, during which all hooks stay off; under switches_lock */
static unsigned int halts;
/* bitmap of points that a profile uses (switched(true) was called); under mmp_lock */
static unsigned long points_ready;

static unsigned int wait_ms = 400;
module_param(wait_ms, uint, 0644);
MODULE_PARM_DESC(wait_ms, "longest time in ms that a write waits for the kernel to hook functions");

static void key_set(enum mm_policy_point point, bool on)
{
	lockdep_assert_held(&switches_lock);
	if (test_bit(point, &hooks_on) == on)
		return;
	mm_policy_enable(mmp_parts->ops, point, on);
	__assign_bit(point, &hooks_on, on);
}

static void key_renew(enum mm_policy_point point)
{
	key_set(point, test_bit(point, &hooks_wanted) && !halts && mmp_provider_hooked(point));
}

/**
 * mmp_switch_hooked - turn a point on after the kernel's hooks have been
 * attached
 * @point: the point
 *
 * Context: from the worker that attaches hooks; may sleep, but never takes
 * mmp_lock.
 */
void mmp_switch_hooked(enum mm_policy_point point)
{
	guard(mutex)(&switches_lock);
	key_renew(point);
}

/**
 * mmp_policy_lacks - find why a policy is unavailable on this kernel
 * @policy: the policy
 *
 * Return: the reason, or %NULL if the policy is available.
 */
const char *mmp_policy_lacks(const struct mmp_policy *policy)
{
	return mmp_provider_lacks(policy->point) ?: READ_ONCE(policy->lacks);
}

/**
 * mmp_switches_settle - wait until the kernel has attached and detached hooks
 * as the last writes require, at most wait_ms
 *
 * Context: not under mmp_lock; may sleep.
 */
void mmp_switches_settle(void)
{
	mmp_provider_wait(READ_ONCE(wait_ms));
}

/**
 * mmp_switch_ready - attach the hooks of a point, so that it can be turned on
 * @point: the point
 *
 * Waits up to wait_ms for the kernel to attach the hooks, or to refuse.
 * Context: not under mmp_lock; may sleep. mmp_switch_set() or
 * mmp_switch_release() must follow.
 * Return: 0, or an error of mmp_provider_wait_for().
 */
int mmp_switch_ready(enum mm_policy_point point)
{
	int err;

	if (mmp_provider_lacks(point))
		return -EOPNOTSUPP;
	mmp_provider_hook(point);
	err = mmp_provider_wait_for(point, READ_ONCE(wait_ms));
	if (err)
		/* The worker detaches the hooks attached so far; wait for it. */
		mmp_switches_settle();
	return err;
}

/**
 * mmp_switch_release - detach the hooks of a point, unless the point is in use
 * @point: the point
 *
 * Context: under mmp_lock.
 */
void mmp_switch_release(enum mm_policy_point point)
{
	lockdep_assert_held(&mmp_lock);
	if (!mmp_switch_is_on(point))
		mmp_provider_unhook(point);
}

/**
 * mmp_switch_set - turn the hook of a point on because a profile has a policy,
 * or off
 * @point: the point
 * @on: true to turn it on; the hook stays off during a reset, or until it is
 *	attached
 *
 * Context: under mmp_lock; may sleep.
 */
void mmp_switch_set(enum mm_policy_point point, bool on)
{
	struct mmp_point *p = mmp_parts->points[point];
	void (*switched)(bool on) = p->switched;
	bool was = test_bit(point, &points_ready);

	lockdep_assert_held(&mmp_lock);
	if (on && !was && switched)
		switched(true);
	if (on)
		mmp_provider_hook(point);
	scoped_guard(mutex, &switches_lock) {
		__assign_bit(point, &hooks_wanted, on || test_bit(point, &hooks_held));
		key_renew(point);
	}
	if (!on && was && switched)
		switched(false);
	if (!on && was && !test_bit(point, &hooks_held))
		mmp_provider_unhook(point);
	if (!on) {
		kvfree(p->scratch);
		p->scratch = NULL;
	}
	assign_bit(point, &points_ready, on);
}

/**
 * mmp_switch_orders - set the orders that policies of anon_order may request
 * @orders: bitmap of orders; during a reset, policies may request none
 *
 * Context: under mmp_lock; may sleep.
 */
void mmp_switch_orders(unsigned long orders)
{
	guard(mutex)(&switches_lock);
	mmp_provider_orders(halts ? 0 : orders);
}

/**
 * mmp_switch_shadow - turn the calls of shadow policies on or off
 * @on: true if a profile has a shadow policy
 *
 * Context: under mmp_lock; may sleep.
 */
void mmp_switch_shadow(bool on)
{
	static bool was;

	lockdep_assert_held(&mmp_lock);
	if (on && !was)
		static_branch_inc(&mmp_watched);
	else if (!on && was)
		static_branch_dec(&mmp_watched);
	was = on;
}

/**
 * mmp_switch_hold - keep the hook of a point on without a policy
 * @point: the point
 * @on: false to end this; then the hook is on only while some profile has a
 *	policy
 *
 * Context: as for mmp_switch_set().
 */
void mmp_switch_hold(enum mm_policy_point point, bool on)
{
	assign_bit(point, &hooks_held, on);
	if (on)
		mmp_provider_hook(point);
	mmp_switch_set(point, test_bit(point, &points_ready));
	if (!on && !test_bit(point, &points_ready))
		mmp_provider_unhook(point);
}

/*
 * Returns true if the hook of a point is needed, by a policy or since
 * mmp_switch_hold(). Under mmp_lock.
 */
bool mmp_switch_is_on(enum mm_policy_point point)
{
	return test_bit(point, &points_ready) || test_bit(point, &hooks_held);
}

/*
 * Returns true if the hook of a point is kept on for another purpose than a
 * policy, such as timing faults.
 */
bool mmp_switch_is_held(enum mm_policy_point point)
{
	return test_bit(point, &hooks_held);
}

/**
 * mmp_switches_halt - turn all hooks off, and keep them off
 *
 * Allocates no memory, and takes only locks that are held briefly.
 * Context: may sleep; mmp_switches_resume() afterwards.
 */
void mmp_switches_halt(void)
{
	int i;

	guard(mutex)(&switches_lock);
	halts++;
	mmp_provider_orders(0);
	for (i = 0; i < MM_POLICY_POINTS; i++)
		key_set(i, false);
}

/**
 * mmp_switches_resume - end mmp_switches_halt()
 *
 * Context: under mmp_lock, with all points at stock.
 */
void mmp_switches_resume(void)
{
	guard(mutex)(&switches_lock);
	halts--;
}

/**
 * mmp_switches_state - return the part of the file "state" that depends on
 * hooks
 *
 * Context: may sleep, but never takes mmp_lock.
 * Return: a word listed in docs/sysfs-abi.txt under "state".
 */
const char *mmp_switches_state(void)
{
	unsigned long ready = READ_ONCE(points_ready);

	guard(mutex)(&switches_lock);
	if (ready & hooks_wanted & ~hooks_on)
		return "attaching";
	if (ready)
		return "active";
	return mmp_provider_detaching() ? "detaching" : "stock";
}
