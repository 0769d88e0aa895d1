// SPDX-License-Identifier: GPL-2.0
/*
 * Profiles: a profile holds a policy and knob values for each point. Its
 * settings are published as a whole under RCU, and the hooks that any profile
 * needs are turned on. Each user of a profile, such as a binding or an arm of
 * the experiment, holds a reference, which the profile counts in @users.
 */
#include <linux/cleanup.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "../sense/fault_time.h"
#include "control.h"

#define MAX_PROFILES	128

LIST_HEAD(mmp_profiles);
static LIST_HEAD(gone);	/* deleted profiles whose files still exist */

static struct mmp_settings *profile_settings(const struct mmp_profile *profile)
{
	return rcu_dereference_protected(profile->settings,
					 lockdep_is_held(&mmp_lock));
}

static bool profile_any_has(enum mm_policy_point point, bool shadow)
{
	const struct mmp_settings *settings;
	const struct mmp_profile *profile;

	list_for_each_entry(profile, &mmp_profiles, node) {
		settings = profile_settings(profile);
		if (shadow ? settings->shadow[point] : settings->active[point])
			return true;
	}
	return false;
}

/*
 * Returns the largest order that the profile's anon_order policy may request:
 * the policy's fixed max_order if it has one, else the value of its first knob;
 * 0 for a policy without either.
 */
static unsigned int profile_max_order(const struct mmp_settings *settings)
{
	const struct mmp_policy *policy = settings->active[MM_POLICY_ANON_ORDER];

	if (!policy)
		return 0;
	if (policy->max_order || !policy->nr_knobs)
		return policy->max_order;
	return settings->values[policy->slot];
}

static unsigned long profile_all_orders(void)
{
	const struct mmp_profile *profile;
	unsigned int most = 0;

	list_for_each_entry(profile, &mmp_profiles, node)
		most = max(most, profile_max_order(profile_settings(profile)));
	return (2UL << most) - 1;
}

/*
 * Turns on the hooks and folio sizes that at least one profile needs, and all others off. The
 * caller holds mmp_lock; may sleep.
 */
void mmp_profiles_switch(void)
{
	bool shadows = false;
	int i;

	mmp_switch_orders(profile_all_orders());

	for (i = 0; i < MM_POLICY_POINTS; i++) {
		bool shadow = profile_any_has(i, true);

		mmp_switch_set(i, shadow || profile_any_has(i, false));
		shadows |= shadow;
	}
	mmp_switch_shadow(shadows);
}

static void profile_publish(struct mmp_profile *profile, struct mmp_settings *new)
{
	struct mmp_settings *old = profile_settings(profile);

	rcu_assign_pointer(profile->settings, new);
	mmp_profiles_switch();
	mmp_whose_outdate_tasks();
	if (old && old != mmp_stock)
		kfree_rcu(old, rcu);
}

/*
 * Copies the settings of a profile, if a write is allowed now. The caller
 * changes the copy and publishes it.
 */
static struct mmp_settings *profile_settings_to_change(struct mmp_profile *profile)
{
	struct mmp_settings *new;
	int err = mmp_may_change(profile);

	if (err)
		return ERR_PTR(err);
	new = mmp_settings_copy(profile_settings(profile));
	return new ?: ERR_PTR(-ENOMEM);
}

/*
 * Attaches the hooks of a policy's point, and waits for them. If a signal ends the wait, detaches
 * them again. Returns -EOPNOTSUPP if this kernel cannot run the policy.
 */
static int profile_get_ready(const struct mmp_policy *policy)
{
	int err = mmp_policy_lacks(policy) ? -EOPNOTSUPP : mmp_switch_ready(policy->point);

	if (err == -EINTR) {
		guard(mutex)(&mmp_lock);
		mmp_switch_release(policy->point);
	}
	return err;
}

/*
 * Sets the policy or shadow policy of a point; the caller holds mmp_lock. *@scratch is memory for
 * the point. If the point needs it, the pointer is set to NULL; otherwise the caller frees it.
 */
static int profile_set_policy(struct mmp_profile *profile, enum mm_policy_point point,
			      const struct mmp_policy *policy, bool shadow, void **scratch)
{
	struct mmp_settings *new = profile_settings_to_change(profile);
	int err = 0;

	if (IS_ERR(new))
		return PTR_ERR(new);
	/*
	 * a BPF policy may have been unloaded since the caller found it, or replaced by one of
	 * another point
	 */
	if (policy)
		err = policy->point != point ? -EINVAL :
		      mmp_policy_lacks(policy) ? -EOPNOTSUPP : 0;
	if (err) {
		kfree(new);
		return err;
	}
	mmp_scratch_use(point, scratch);
	if (shadow)
		new->shadow[point] = policy;
	else
		new->active[point] = policy;
	profile_publish(profile, new);
	return 0;
}

/**
 * mmp_set_policy - set the policy of a point in a profile
 * @profile: the profile
 * @point: the point
 * @policy: the policy, or %NULL for stock
 * @shadow: set the shadow policy, which is asked and counted but not obeyed;
 *	%NULL @policy removes it
 *
 * Context: may sleep.
 * Return: 0, -ENOMEM, -EINVAL if the point no longer has this policy, or an
 * error of mmp_may_change() and mmp_switch_ready(); on error nothing has
 * changed. If the kernel has not attached the hooks within wait_ms, it may
 * still refuse them later, and &mmp_watcher.lost reports it.
 */
int mmp_set_policy(struct mmp_profile *profile, enum mm_policy_point point,
		   const struct mmp_policy *policy, bool shadow)
{
	void *scratch __free(kvfree) = mmp_scratch_make(point, policy);
	int err = policy ? profile_get_ready(policy) : 0;

	if (err)
		return err;
	scoped_guard(mutex, &mmp_lock) {
		err = profile_set_policy(profile, point, policy, shadow, &scratch);
		if (err && policy)
			mmp_switch_release(policy->point);
	}
	if (!policy)
		mmp_switches_settle();
	return err;
}

/**
 * mmp_set_knob - set a knob of a profile
 * @profile: the profile
 * @knob: the knob
 * @value: value within the bounds of the knob
 *
 * Context: may sleep.
 * Return: 0, -ENOMEM or an error of mmp_may_change(); on error nothing has
 * changed.
 */
int mmp_set_knob(struct mmp_profile *profile, const struct mmp_knob *knob,
		 u32 value)
{
	struct mmp_settings *new;

	guard(mutex)(&mmp_lock);
	new = profile_settings_to_change(profile);
	if (IS_ERR(new))
		return PTR_ERR(new);
	new->values[knob->slot] = value;
	profile_publish(profile, new);
	return 0;
}

/* Marks a profile as deleted. mmp_profile_files_sweep() later removes its files and frees it. */
static void profile_put_away(struct mmp_profile *profile)
{
	profile->gone = true;
	list_move_tail(&profile->node, &gone);
}

/**
 * mmp_profiles_to_stock - delete all profiles but "default", and set "default"
 * to stock
 *
 * This restores the state after load, and must not fail, so it allocates no
 * memory.
 * Context: under mmp_lock; may sleep. The caller then drops all bindings and
 * the arms of the experiment, and removes the files of the deleted profiles.
 */
void mmp_profiles_to_stock(void)
{
	struct mmp_profile *profile, *next;

	lockdep_assert_held(&mmp_lock);
	list_for_each_entry_safe(profile, next, &mmp_profiles, node)
		if (profile != &mmp_default)
			profile_put_away(profile);
	profile_publish(&mmp_default, mmp_stock);
}

/**
 * mmp_point_to_stock - set a point to stock in all profiles
 * @point: the point
 * @policy: changes only profiles with this policy, which must not be available
 *	for selection; %NULL for all profiles
 *
 * Context: under mmp_lock; may sleep.
 * Return: 0, or -ENOMEM with some profiles changed.
 */
int mmp_point_to_stock(enum mm_policy_point point, const struct mmp_policy *policy)
{
	struct mmp_profile *profile;

	lockdep_assert_held(&mmp_lock);
	list_for_each_entry(profile, &mmp_profiles, node) {
		struct mmp_settings *new, *old = profile_settings(profile);
		const struct mmp_policy *active = old->active[point], *shadow = old->shadow[point];
		bool loses = active && (!policy || active == policy);
		bool loses_shadow = shadow && (!policy || shadow == policy);

		if (!loses && !loses_shadow)
			continue;
		new = mmp_settings_copy(old);
		if (!new)
			return -ENOMEM;
		new->active[point] = loses ? NULL : active;
		new->shadow[point] = loses_shadow ? NULL : shadow;
		profile_publish(profile, new);
	}
	return 0;
}

/**
 * mmp_profile_find - find a profile by name
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

/**
 * mmp_profile_new - allocate a profile that cannot be used before
 * mmp_profile_link()
 * @text: its name; one newline may follow
 *
 * Context: may sleep.
 * Return: the profile, or an error that docs/sysfs-abi.txt lists for "create".
 */
struct mmp_profile *mmp_profile_new(const char *text)
{
	struct mmp_profile *profile;
	char name[MMP_NAME_SIZE];
	int err = mmp_parse_name(text, name, sizeof(name));

	if (err)
		return ERR_PTR(err);
	guard(mutex)(&mmp_lock);
	err = mmp_may_change(NULL);
	if (err)
		return ERR_PTR(err);
	if (mmp_profile_find(name))
		return ERR_PTR(-EEXIST);
	if (list_count_nodes(&mmp_profiles) >= MAX_PROFILES)
		return ERR_PTR(-ENOSPC);
	profile = kzalloc(sizeof(*profile), GFP_KERNEL);
	if (!profile)
		return ERR_PTR(-ENOMEM);
	if (mmp_profile_make_memory(profile)) {
		mmp_profile_free_memory(profile);
		kfree(profile);
		return ERR_PTR(-ENOMEM);
	}
	strscpy(profile->name, name);
	profile->gone = true;	/* all writes to the profile fail until it is linked */
	INIT_LIST_HEAD(&profile->dirs);
	RCU_INIT_POINTER(profile->settings, mmp_stock);
	return profile;
}

/**
 * mmp_profile_link - add a new profile to the list of profiles
 * @profile: the profile, whose files all exist
 *
 * Return: 0, or -EBUSY after the lease has expired.
 */
int mmp_profile_link(struct mmp_profile *profile)
{
	int err;

	guard(mutex)(&mmp_lock);
	err = mmp_may_change(NULL);
	if (err)
		return err;
	profile->gone = false;
	list_add_tail(&profile->node, &mmp_profiles);
	return 0;
}

/**
 * mmp_profile_delete - delete a profile that no binding and no arm uses
 * @name: its name; one newline may follow
 *
 * Return: 0, and the caller removes the files by mmp_profile_files_sweep(); or
 * an error as docs/sysfs-abi.txt lists for "delete".
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
	if (profile == &mmp_default || atomic_read(&profile->users))
		return -EBUSY;
	profile_put_away(profile);
	mmp_profiles_switch();
	/* CPUs may have cached the profile for processes that have ended, so drop these caches. */
	mmp_whose_outdate_tasks();
	return 0;
}

/**
 * mmp_profiles_gone - move all deleted profiles to a list, to remove their
 * files
 * @list: receives the profiles
 */
void mmp_profiles_gone(struct list_head *list)
{
	guard(mutex)(&mmp_lock);
	list_splice_tail_init(&gone, list);
}

/**
 * mmp_profile_free - free a profile
 * @profile: a profile without files, which RCU readers can no longer hold: they
 *	never found it, or a grace period has passed since they last could
 */
void mmp_profile_free(struct mmp_profile *profile)
{
	struct mmp_settings *settings =
		rcu_replace_pointer(profile->settings, NULL, true);

	if (settings != mmp_stock)
		kfree(settings);
	mmp_profile_free_memory(profile);
	if (profile != &mmp_default)
		kfree(profile);
}

/**
 * mmp_profiles_init - make the profile "default"
 * @active: policy for each point, %NULL for stock
 *
 * Return: 0, -ENOMEM or an error of mmp_switch_ready(). mmp_profiles_exit()
 * cleans up in either case.
 */
int mmp_profiles_init(const struct mmp_policy *const *active)
{
	struct mmp_settings *new;
	void *scratch;
	int i, err = 0;

	if (mmp_profile_make_memory(&mmp_default))
		return -ENOMEM;
	for (i = 0; i < MM_POLICY_POINTS && !err; i++)
		err = active[i] ? mmp_switch_ready(i) : 0;
	if (err)
		return err;
	guard(mutex)(&mmp_lock);
	new = mmp_settings_copy(mmp_stock);
	if (!new)
		return -ENOMEM;
	for (i = 0; i < MM_POLICY_POINTS; i++) {
		scratch = mmp_scratch_make(i, active[i]);
		mmp_scratch_use(i, &scratch);
	}
	memcpy(new->active, active, sizeof(new->active));
	RCU_INIT_POINTER(mmp_default.settings, mmp_stock);
	list_add(&mmp_default.node, &mmp_profiles);
	profile_publish(&mmp_default, new);
	return 0;
}

/**
 * mmp_profiles_exit - turn the hooks off and free the profile "default"
 *
 * Context: no callback runs, and no file of the module is left.
 */
void mmp_profiles_exit(void)
{
	int i;

	guard(mutex)(&mmp_lock);
	for (i = 0; i < MM_POLICY_POINTS; i++)
		mmp_switch_set(i, false);
	mmp_switch_shadow(false);
	mmp_profile_free(&mmp_default);
}
