// SPDX-License-Identifier: GPL-2.0
/* Profiles: settings published as a whole, and the hooks they need. */
#include <linux/cleanup.h>
#include <linux/mutex.h>
#include <linux/overflow.h>
#include <linux/slab.h>

#include "mmpolicy.h"

struct mmp_profile mmp_default = {
	.name = "default",
	.dirs = LIST_HEAD_INIT(mmp_default.dirs),
};

/* Serialises changes; readers have RCU. */
static DEFINE_MUTEX(lock);
static bool asked[MM_POLICY_POINTS];
static unsigned int nr_slots, nr_counters;

static void layout_knobs(struct mmp_knob *knobs, unsigned int nr)
{
	while (nr--)
		(knobs++)->slot = nr_slots++;
}

/* Gives each knob and each counter its index, once. */
static void layout(void)
{
	struct mmp_policy *policy;
	int i;

	if (nr_counters)
		return;
	for (i = 0; i < MM_POLICY_POINTS; i++) {
		layout_knobs(mmp_points[i]->knobs, mmp_points[i]->nr_knobs);
		mmp_points[i]->first_counter = nr_counters;
		nr_counters += mmp_points[i]->nr_counters;
	}
	for_each_policy(policy, i) {
		policy->slot = nr_slots;
		layout_knobs(policy->knobs, policy->nr_knobs);
	}
}

static void knob_defaults(struct mmp_settings *settings,
			  const struct mmp_knob *knob, unsigned int nr)
{
	for (; nr--; knob++)
		settings->values[knob->slot] = knob->def;
}

/* All stock, all knobs at their defaults. */
static void set_defaults(struct mmp_settings *settings)
{
	const struct mmp_policy *policy;
	int i;

	memset(settings->active, 0, sizeof(settings->active));
	for (i = 0; i < MM_POLICY_POINTS; i++)
		knob_defaults(settings, mmp_points[i]->knobs,
			      mmp_points[i]->nr_knobs);
	for_each_policy(policy, i)
		knob_defaults(settings, policy->knobs, policy->nr_knobs);
}

static struct mmp_settings *current_settings(const struct mmp_profile *profile)
{
	return rcu_dereference_protected(profile->settings,
					 lockdep_is_held(&lock));
}

static struct mmp_settings *copy_settings(const struct mmp_profile *profile,
					  gfp_t gfp)
{
	const struct mmp_settings *old = current_settings(profile);
	struct mmp_settings *new;

	new = kzalloc(struct_size(new, values, nr_slots), gfp);
	if (new && old)
		memcpy(new, old, struct_size(old, values, nr_slots));
	return new;
}

/* Turns the hook of a point on while it has a policy, off afterwards. */
static void ask(enum mm_policy_point point, bool on)
{
	void (*switched)(bool on) = mmp_points[point]->switched;

	if (asked[point] == on)
		return;
	asked[point] = on;
	if (on && switched)
		switched(true);
	mm_policy_enable(&mmp_ops, point, on);
	if (!on && switched)
		switched(false);
}

static void publish(struct mmp_profile *profile, struct mmp_settings *new)
{
	struct mmp_settings *old = current_settings(profile);
	int i;

	rcu_assign_pointer(profile->settings, new);
	for (i = 0; i < MM_POLICY_POINTS; i++)
		ask(i, new->active[i]);
	if (old)
		kfree_rcu(old, rcu);
}

/**
 * mmp_set_policy - switch a point of a profile
 * @profile: which profile
 * @point: which point
 * @policy: the policy, or %NULL for stock
 *
 * Context: may sleep.
 * Return: 0 or -ENOMEM, with nothing changed.
 */
int mmp_set_policy(struct mmp_profile *profile, enum mm_policy_point point,
		   const struct mmp_policy *policy)
{
	struct mmp_settings *new;

	guard(mutex)(&lock);
	new = copy_settings(profile, GFP_KERNEL);
	if (!new)
		return -ENOMEM;
	new->active[point] = policy;
	publish(profile, new);
	return 0;
}

/**
 * mmp_set_knob - set a knob of a profile
 * @profile: which profile
 * @knob: which knob
 * @value: within its bounds
 *
 * Context: may sleep.
 * Return: 0 or -ENOMEM, with nothing changed.
 */
int mmp_set_knob(struct mmp_profile *profile, const struct mmp_knob *knob,
		 u32 value)
{
	struct mmp_settings *new;

	guard(mutex)(&lock);
	new = copy_settings(profile, GFP_KERNEL);
	if (!new)
		return -ENOMEM;
	new->values[knob->slot] = value;
	publish(profile, new);
	return 0;
}

/**
 * mmp_reset - back to stock, and all knobs to their defaults
 * @profile: which profile
 *
 * The way back must not fail, so it waits for memory.
 * Context: may sleep.
 */
void mmp_reset(struct mmp_profile *profile)
{
	struct mmp_settings *new;

	guard(mutex)(&lock);
	new = copy_settings(profile, GFP_KERNEL | __GFP_NOFAIL);
	set_defaults(new);
	publish(profile, new);
}

/* Has any point a policy other than stock? */
bool mmp_active(void)
{
	return memchr_inv(asked, 0, sizeof(asked));
}

/**
 * mmp_profile_init - make a profile
 * @profile: name and list head are set
 * @active: policy for each point, %NULL for stock
 *
 * Return: 0 or -ENOMEM. mmp_profile_exit() cleans up in either case.
 */
int mmp_profile_init(struct mmp_profile *profile,
		     const struct mmp_policy *const *active)
{
	struct mmp_settings *new;

	guard(mutex)(&lock);
	layout();
	profile->counters = __alloc_percpu(nr_counters * sizeof(u64),
					   __alignof__(u64));
	new = copy_settings(profile, GFP_KERNEL);
	if (!profile->counters || !new) {
		kfree(new);
		return -ENOMEM;
	}
	set_defaults(new);
	memcpy(new->active, active, sizeof(new->active));
	publish(profile, new);
	return 0;
}

/**
 * mmp_profile_exit - free what a profile has
 * @profile: no callback runs, no file is left
 */
void mmp_profile_exit(struct mmp_profile *profile)
{
	int i;

	guard(mutex)(&lock);
	for (i = 0; i < MM_POLICY_POINTS; i++)
		ask(i, false);
	kfree(rcu_replace_pointer(profile->settings, NULL, true));
	free_percpu(profile->counters);
}
