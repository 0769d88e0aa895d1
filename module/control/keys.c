// SPDX-License-Identifier: GPL-2.0
/*
 * Which hooks ask us: those of the points where some profile has a policy, but
 * none while the way back is under way.
 */
#include <linux/bitops.h>
#include <linux/cleanup.h>
#include <linux/slab.h>

#include "../provider/provider.h"
#include "control.h"

/*
 * Nobody waits for memory or for another writer while holding this, so that the
 * hooks can be turned off at any time.
 */
static DEFINE_MUTEX(keys_lock);
static unsigned long hooks_on;		/* a bit for each point; under keys_lock */
static unsigned long hooks_held;	/* whatever the policies; under mmp_lock */
static unsigned int halts;		/* under keys_lock */
static unsigned long points_ready;	/* told that they are needed; under mmp_lock */

static void key_set(enum mm_policy_point point, bool on)
{
	lockdep_assert_held(&keys_lock);
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
	return mmp_provider_lacks(policy->point) ?: policy->lacks;
}

/**
 * mmp_key_ready - get the hook of a point ready to be turned on
 * @policy: what for
 *
 * Context: under mmp_lock, before the policy is published; may sleep.
 * Return: 0 or an error, as mmp_provider_hook().
 */
int mmp_key_ready(const struct mmp_policy *policy)
{
	lockdep_assert_held(&mmp_lock);
	return mmp_policy_lacks(policy) ? -EOPNOTSUPP : mmp_provider_hook(policy->point);
}

/**
 * mmp_key_switch - turn the hook of a point on while it has a policy, or off
 * @point: which
 * @on: on? If the hooks are halted, it stays off.
 *
 * Context: under mmp_lock, to turn it on after mmp_key_ready(); may sleep.
 */
void mmp_key_switch(enum mm_policy_point point, bool on)
{
	struct mmp_point *p = mmp_parts->points[point];
	void (*switched)(bool on) = p->switched;
	bool was = test_bit(point, &points_ready);

	lockdep_assert_held(&mmp_lock);
	if (on && !was && switched)
		switched(true);
	scoped_guard(mutex, &keys_lock)
		key_set(point, (on || test_bit(point, &hooks_held)) && !halts);
	if (!on && was && switched)
		switched(false);
	if (!on && was && !test_bit(point, &hooks_held))
		mmp_provider_unhook(point);
	if (!on) {
		kvfree(p->room);
		p->room = NULL;
	}
	assign_bit(point, &points_ready, on);
}

/**
 * mmp_key_shadow - let points ask shadows while there are any
 * @on: are there?
 *
 * Context: under mmp_lock; may sleep.
 */
void mmp_key_shadow(bool on)
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
 * mmp_key_hold - have the hook of a point on without a policy too
 * @point: which
 * @on: on? If not, its policies alone decide again.
 *
 * Context: as mmp_key_switch().
 */
void mmp_key_hold(enum mm_policy_point point, bool on)
{
	assign_bit(point, &hooks_held, on);
	mmp_key_switch(point, test_bit(point, &points_ready));
}

/**
 * mmp_keys_halt - turn all hooks off, and keep them off
 *
 * Needs no memory, and no lock that anybody holds for long.
 * Context: may sleep; mmp_keys_resume() afterwards.
 */
void mmp_keys_halt(void)
{
	int i;

	guard(mutex)(&keys_lock);
	halts++;
	for (i = 0; i < MM_POLICY_POINTS; i++)
		key_set(i, false);
}

/**
 * mmp_keys_resume - end mmp_keys_halt()
 *
 * Context: under mmp_lock, with all points at stock.
 */
void mmp_keys_resume(void)
{
	guard(mutex)(&keys_lock);
	halts--;
}

/* Has any point a policy other than stock? */
bool mmp_active(void)
{
	return READ_ONCE(points_ready);
}
