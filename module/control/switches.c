// SPDX-License-Identifier: GPL-2.0
/*
 * Switches of the points: the static keys of the hooks. A hook is on while some profile has a
 * policy at its point, but none is on while the way back is under way.
 */
#include <linux/bitops.h>
#include <linux/cleanup.h>
#include <linux/slab.h>

#include "../provider/provider.h"
#include "../sense/observe.h"
#include "control.h"

/*
 * Nobody waits for memory or for another writer while holding this, so that the
 * hooks can be turned off at any time.
 */
static DEFINE_MUTEX(switches_lock);
static unsigned long hooks_on;		/* a bit for each point; under switches_lock */
static unsigned long hooks_held;	/* on without a policy too; under mmp_lock */
static unsigned int halts;		/* ways back under way; under switches_lock */
static unsigned long points_ready;	/* points that were told of a policy; under mmp_lock */

static void key_set(enum mm_policy_point point, bool on)
{
	lockdep_assert_held(&switches_lock);
	if (test_bit(point, &hooks_on) == on)
		return;
	mm_policy_enable(mmp_parts->ops, point, on);
	__assign_bit(point, &hooks_on, on);
}

/**
 * mmp_policy_lacks - why a policy cannot be had on this kernel
 * @policy: which
 *
 * Return: the reason, or %NULL if it can be had.
 */
const char *mmp_policy_lacks(const struct mmp_policy *policy)
{
	return mmp_provider_lacks(policy->point) ?: READ_ONCE(policy->lacks);
}

/**
 * mmp_switch_ready - get the hook of a point ready to be turned on
 * @policy: what for
 *
 * Context: under mmp_lock, before the policy is published; may sleep.
 * Return: 0 or an error, as mmp_provider_hook().
 */
int mmp_switch_ready(const struct mmp_policy *policy)
{
	lockdep_assert_held(&mmp_lock);
	return mmp_policy_lacks(policy) ? -EOPNOTSUPP : mmp_provider_hook(policy->point);
}

/**
 * mmp_switch_set - turn the hook of a point on while it has a policy, or off
 * @point: which
 * @on: on? If the hooks are halted, it stays off.
 *
 * Context: under mmp_lock, to turn it on after mmp_switch_ready(); may sleep.
 */
void mmp_switch_set(enum mm_policy_point point, bool on)
{
	struct mmp_point *p = mmp_parts->points[point];
	void (*switched)(bool on) = p->switched;
	bool was = test_bit(point, &points_ready);

	lockdep_assert_held(&mmp_lock);
	if (on && !was && switched)
		switched(true);
	scoped_guard(mutex, &switches_lock)
		key_set(point, (on || test_bit(point, &hooks_held)) && !halts);
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
 * mmp_switch_shadow - let points ask shadows while there are any
 * @on: are there?
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
 * mmp_switch_hold - have the hook of a point on without a policy too
 * @point: which
 * @on: on? If not, its policies alone decide again.
 *
 * Context: as mmp_switch_set(), after mmp_provider_hook() to have it on.
 */
void mmp_switch_hold(enum mm_policy_point point, bool on)
{
	assign_bit(point, &hooks_held, on);
	mmp_switch_set(point, test_bit(point, &points_ready));
	if (!on && !test_bit(point, &points_ready))
		mmp_provider_unhook(point);
}

/* Is the hook of a point in use? Under mmp_lock. */
bool mmp_switch_is_on(enum mm_policy_point point)
{
	return test_bit(point, &points_ready) || test_bit(point, &hooks_held);
}

/* Is the hook on for something else than a policy, such as timing faults? */
bool mmp_switch_is_held(enum mm_policy_point point)
{
	return test_bit(point, &hooks_held);
}

/**
 * mmp_switches_halt - turn all hooks off, and keep them off
 *
 * Needs no memory, and no lock that anybody holds for long.
 * Context: may sleep; mmp_switches_resume() afterwards.
 */
void mmp_switches_halt(void)
{
	int i;

	guard(mutex)(&switches_lock);
	halts++;
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

/* Has any point a policy other than stock? */
bool mmp_active(void)
{
	return READ_ONCE(points_ready);
}
