// SPDX-License-Identifier: GPL-2.0
/* Profiles: settings published as a whole, and the hooks they need. */
#include <linux/cleanup.h>
#include <linux/overflow.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "control.h"

#define MAX_PROFILES	64

DEFINE_MUTEX(mmp_lock);	/* serialises changes */
LIST_HEAD(mmp_profiles);
static LIST_HEAD(gone);	/* deleted ones that still have files */

struct mmp_profile mmp_default = {
	.name = "default",
	.dirs = LIST_HEAD_INIT(mmp_default.dirs),
};

/* All stock, all knobs at their defaults. It is nobody's own and stays. */
static struct mmp_settings *stock;
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

static void set_defaults(struct mmp_settings *settings)
{
	const struct mmp_policy *policy;
	int i;

	for (i = 0; i < MM_POLICY_POINTS; i++)
		knob_defaults(settings, mmp_points[i]->knobs,
			      mmp_points[i]->nr_knobs);
	for_each_policy(policy, i)
		knob_defaults(settings, policy->knobs, policy->nr_knobs);
}

static struct mmp_settings *current_settings(const struct mmp_profile *profile)
{
	return rcu_dereference_protected(profile->settings,
					 lockdep_is_held(&mmp_lock));
}

static struct mmp_settings *copy_settings(const struct mmp_settings *old)
{
	return kmemdup(old, struct_size(old, values, nr_slots), GFP_KERNEL);
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

static bool wanted(enum mm_policy_point point)
{
	const struct mmp_profile *profile;

	list_for_each_entry(profile, &mmp_profiles, node)
		if (current_settings(profile)->active[point])
			return true;
	return false;
}

static void ask_what_is_wanted(void)
{
	int i;

	for (i = 0; i < MM_POLICY_POINTS; i++)
		ask(i, wanted(i));
}

static void publish(struct mmp_profile *profile, struct mmp_settings *new)
{
	struct mmp_settings *old = current_settings(profile);

	rcu_assign_pointer(profile->settings, new);
	ask_what_is_wanted();
	if (old && old != stock)
		kfree_rcu(old, rcu);
}

/**
 * mmp_may_change - is a write allowed now?
 * @profile: what it is about, or %NULL for anything else
 *
 * Context: under mmp_lock.
 * Return: 0; -EBUSY after the lease has expired; -ENODEV for a profile that is
 *	deleted.
 */
int mmp_may_change(const struct mmp_profile *profile)
{
	lockdep_assert_held(&mmp_lock);
	if (mmp_expired())
		return -EBUSY;
	return profile && profile->gone ? -ENODEV : 0;
}

/* A copy of what a profile says, to be changed and published. */
static struct mmp_settings *settings_to_change(struct mmp_profile *profile)
{
	struct mmp_settings *new;
	int err = mmp_may_change(profile);

	if (err)
		return ERR_PTR(err);
	new = copy_settings(current_settings(profile));
	return new ?: ERR_PTR(-ENOMEM);
}

/**
 * mmp_set_policy - switch a point of a profile
 * @profile: which profile
 * @point: which point
 * @policy: the policy, or %NULL for stock
 *
 * Context: may sleep.
 * Return: 0, -ENOMEM or as mmp_may_change(); on error nothing has changed.
 */
int mmp_set_policy(struct mmp_profile *profile, enum mm_policy_point point,
		   const struct mmp_policy *policy)
{
	struct mmp_settings *new;

	guard(mutex)(&mmp_lock);
	new = settings_to_change(profile);
	if (IS_ERR(new))
		return PTR_ERR(new);
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
 * Return: 0, -ENOMEM or as mmp_may_change(); on error nothing has changed.
 */
int mmp_set_knob(struct mmp_profile *profile, const struct mmp_knob *knob,
		 u32 value)
{
	struct mmp_settings *new;

	guard(mutex)(&mmp_lock);
	new = settings_to_change(profile);
	if (IS_ERR(new))
		return PTR_ERR(new);
	new->values[knob->slot] = value;
	publish(profile, new);
	return 0;
}

/* Off with it; its files follow in mmp_sysfs_sweep(). */
static void put_away(struct mmp_profile *profile)
{
	profile->gone = true;
	list_move_tail(&profile->node, &gone);
}

/**
 * mmp_all_stock - back to what is after load
 *
 * All points to stock first, then the rest: knobs, profiles, bindings,
 * experiment, lease. The way back must not fail, so it needs no memory.
 * Context: under mmp_lock; may sleep. mmp_sysfs_sweep() afterwards.
 */
void mmp_all_stock(void)
{
	struct mmp_profile *profile, *next;

	lockdep_assert_held(&mmp_lock);
	list_for_each_entry_safe(profile, next, &mmp_profiles, node)
		if (profile != &mmp_default)
			put_away(profile);
	publish(&mmp_default, stock);
	mmp_experiment_clear();
	mmp_unbind_all();
	mmp_lease_clear();
}

/* Has any point a policy other than stock? */
bool mmp_active(void)
{
	return memchr_inv(asked, 0, sizeof(asked));
}

/**
 * mmp_profile_find - look a profile up
 * @name: its name
 *
 * Context: under mmp_lock.
 * Return: the profile, or %NULL.
 */
struct mmp_profile *mmp_profile_find(const char *name)
{
	struct mmp_profile *profile;

	lockdep_assert_held(&mmp_lock);
	list_for_each_entry(profile, &mmp_profiles, node)
		if (sysfs_streq(name, profile->name))
			return profile;
	return NULL;
}

static int make_counters(struct mmp_profile *profile)
{
	size_t nr = nr_counters + MM_POLICY_POINTS * MMP_LATENCIES;

	profile->counters = __alloc_percpu(nr * sizeof(u64), __alignof__(u64));
	return profile->counters ? 0 : -ENOMEM;
}

/**
 * mmp_latency_counters - how long the faults of a profile took
 * @profile: whose faults
 * @point: that were decided at this point too
 *
 * Return: %MMP_LATENCIES counters, by log2 of the time in ns.
 */
u64 __percpu *mmp_latency_counters(const struct mmp_profile *profile,
				   enum mm_policy_point point)
{
	return profile->counters + nr_counters + point * MMP_LATENCIES;
}

static bool name_is_valid(const char *name, size_t len)
{
	/* No arm is "none", and the others are files beside the profiles. */
	static const char *const taken[] = {
		"none", "create", "delete", "experiment", "measure"
	};
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";

	return len && len < MMP_NAME_SIZE && strspn(name, allowed) == len &&
	       *name != '_' && *name != '-' &&
	       match_string(taken, ARRAY_SIZE(taken), name) < 0;
}

/**
 * mmp_profile_new - make a profile that nothing can be bound to yet
 * @text: its name; one newline may follow
 *
 * Context: may sleep.
 * Return: the profile, or an error as docs/sysfs-abi.txt has it for "create".
 */
struct mmp_profile *mmp_profile_new(const char *text)
{
	char name[MMP_NAME_SIZE + 1] = "";
	struct mmp_profile *profile;
	int err;

	strscpy(name, text);
	name[strcspn(name, "\n")] = '\0';
	if (!sysfs_streq(text, name) || !name_is_valid(name, strlen(name)))
		return ERR_PTR(-EINVAL);
	guard(mutex)(&mmp_lock);
	err = mmp_may_change(NULL);
	if (err)
		return ERR_PTR(err);
	if (mmp_profile_find(name))
		return ERR_PTR(-EEXIST);
	if (list_count_nodes(&mmp_profiles) >= MAX_PROFILES)
		return ERR_PTR(-ENOSPC);
	profile = kzalloc(sizeof(*profile), GFP_KERNEL);
	if (!profile || make_counters(profile)) {
		kfree(profile);
		return ERR_PTR(-ENOMEM);
	}
	strscpy(profile->name, name);
	INIT_LIST_HEAD(&profile->dirs);
	RCU_INIT_POINTER(profile->settings, stock);
	return profile;
}

/**
 * mmp_profile_link - let a new profile be used
 * @profile: with all its files
 *
 * Return: 0 or -EBUSY.
 */
int mmp_profile_link(struct mmp_profile *profile)
{
	int err;

	guard(mutex)(&mmp_lock);
	err = mmp_may_change(NULL);
	if (err)
		return err;
	list_add_tail(&profile->node, &mmp_profiles);
	ask_what_is_wanted();
	return 0;
}

/**
 * mmp_profile_delete - delete a profile that nothing uses
 * @name: its name; one newline may follow
 *
 * Return: 0, with mmp_sysfs_sweep() to follow; or an error as
 *	docs/sysfs-abi.txt has it for "delete".
 */
int mmp_profile_delete(const char *name)
{
	struct mmp_profile *profile;
	int err;

	guard(mutex)(&mmp_lock);
	err = mmp_may_change(NULL);
	if (err)
		return err;
	profile = mmp_profile_find(name);
	if (!profile)
		return -ENOENT;
	if (profile == &mmp_default || mmp_bound(profile) ||
	    mmp_experiment_uses(profile))
		return -EBUSY;
	put_away(profile);
	ask_what_is_wanted();
	return 0;
}

/**
 * mmp_profiles_gone - the profiles whose files are to be removed
 * @list: they are moved there
 */
void mmp_profiles_gone(struct list_head *list)
{
	guard(mutex)(&mmp_lock);
	list_splice_tail_init(&gone, list);
}

/**
 * mmp_profile_free - free a profile
 * @profile: it has no file, and all that could have found it has ended
 */
void mmp_profile_free(struct mmp_profile *profile)
{
	struct mmp_settings *settings =
		rcu_replace_pointer(profile->settings, NULL, true);

	if (settings != stock)
		kfree(settings);
	free_percpu(profile->counters);
	if (profile != &mmp_default)
		kfree(profile);
}

/**
 * mmp_profiles_init - make the profile "default"
 * @active: policy for each point, %NULL for stock
 *
 * Return: 0 or -ENOMEM. mmp_profiles_exit() cleans up in either case.
 */
int mmp_profiles_init(const struct mmp_policy *const *active)
{
	struct mmp_settings *new;

	guard(mutex)(&mmp_lock);
	layout();
	stock = kzalloc(struct_size(stock, values, nr_slots), GFP_KERNEL);
	if (!stock || make_counters(&mmp_default))
		return -ENOMEM;
	set_defaults(stock);
	new = copy_settings(stock);
	if (!new)
		return -ENOMEM;
	memcpy(new->active, active, sizeof(new->active));
	RCU_INIT_POINTER(mmp_default.settings, stock);
	list_add(&mmp_default.node, &mmp_profiles);
	publish(&mmp_default, new);
	return 0;
}

/**
 * mmp_profiles_exit - free what is left: the profile "default"
 *
 * Context: no callback runs, no file is left.
 */
void mmp_profiles_exit(void)
{
	int i;

	guard(mutex)(&mmp_lock);
	for (i = 0; i < MM_POLICY_POINTS; i++)
		ask(i, false);
	mmp_profile_free(&mmp_default);
	kfree(stock);
}
