// SPDX-License-Identifier: GPL-2.0
/* The sysfs directories of profiles, with those of points, policies and knobs in them. */
#include <linux/cleanup.h>
#include <linux/slab.h>

#include "control.h"

static struct kobject *profiles;

/* held to make or remove the sysfs files of profiles; taken before mmp_lock */
DEFINE_MUTEX(mmp_files_lock);

static struct attribute policy_attr = { .name = "policy", .mode = 0644 };
static struct attribute shadow_attr = { .name = "shadow", .mode = 0644 };

static ssize_t files_show_choice(char *buf, ssize_t len, const char *name, bool on)
{
	return sysfs_emit_at(buf, len, on ? "%s[%s]" : "%s%s", len ? " " : "",
			     name);
}

static const char *files_no_policy(bool shadow)
{
	return shadow ? "none" : "stock";
}

static ssize_t files_show_policy(const struct mmp_dir *dir, char *buf, bool shadow)
{
	const struct mmp_policy *active, *policy;
	const struct mmp_settings *settings;
	ssize_t len;
	int i;

	guard(rcu)();
	settings = rcu_dereference(dir->profile->settings);
	active = (shadow ? settings->shadow : settings->active)[dir->point];
	len = files_show_choice(buf, 0, files_no_policy(shadow), !active);
	for_each_policy(policy, i)
		if (policy->point == dir->point && (policy == active || !policy->loadable ||
						    !READ_ONCE(policy->lacks)))
			len += files_show_choice(buf, len, policy->name,
					   policy == active);
	return len + sysfs_emit_at(buf, len, "\n");
}

static int files_store_policy(const struct mmp_dir *dir, const char *buf, bool shadow)
{
	const struct mmp_policy *policy = NULL;

	if (!sysfs_streq(buf, files_no_policy(shadow))) {
		policy = mmp_policy_find(dir->point, buf);
		if (!policy)
			return -EINVAL;
	}
	return mmp_set_policy(dir->profile, dir->point, policy, shadow);
}

static ssize_t files_show_knob(const struct mmp_dir *dir, const struct mmp_knob *knob,
			       char *buf)
{
	guard(rcu)();
	return sysfs_emit(buf, "%u\n",
			  rcu_dereference(dir->profile->settings)->values[knob->slot]);
}

static int files_store_knob(const struct mmp_dir *dir, const struct mmp_knob *knob,
			    const char *buf, size_t count)
{
	u64 value;
	int err = mmp_parse(buf, count, knob->min, knob->max, &value);

	if (err)
		return err;
	return mmp_set_knob(dir->profile, knob, value);
}

static ssize_t files_dir_show(struct kobject *kobj, struct attribute *attr, char *buf)
{
	const struct mmp_dir *dir = mmp_dir_of(kobj);

	if (attr == &policy_attr || attr == &shadow_attr)
		return files_show_policy(dir, buf, attr == &shadow_attr);
	return files_show_knob(dir, container_of(attr, struct mmp_knob, attr), buf);
}

static ssize_t files_dir_store(struct kobject *kobj, struct attribute *attr,
			       const char *buf, size_t count)
{
	const struct mmp_dir *dir = mmp_dir_of(kobj);
	int err;

	if (count > MMP_LONGEST)
		return -EINVAL;
	if (attr == &policy_attr || attr == &shadow_attr)
		err = files_store_policy(dir, buf, attr == &shadow_attr);
	else
		err = files_store_knob(dir, container_of(attr, struct mmp_knob, attr),
				       buf, count);
	return err ?: count;
}

static const struct sysfs_ops dir_ops = {
	.show = files_dir_show,
	.store = files_dir_store,
};

static void files_dir_release(struct kobject *kobj)
{
	kfree(mmp_dir_of(kobj));
}

static const struct kobj_type dir_type = {
	.sysfs_ops = &dir_ops,
	.release = files_dir_release,
};

/*
 * Makes the sysfs directory @name with a file for each knob. @profile owns the directory even if
 * adding files failed.
 */
static struct mmp_dir *files_add_dir(struct mmp_profile *profile, struct kobject *parent,
				     enum mm_policy_point point, const char *name,
				     const struct mmp_knob *knob, unsigned int nr_knobs)
{
	struct mmp_dir *dir = kzalloc(sizeof(*dir), GFP_KERNEL);
	int err;

	if (!dir)
		return ERR_PTR(-ENOMEM);
	dir->profile = profile;
	dir->point = point;
	list_add_tail(&dir->node, &profile->dirs);
	err = kobject_init_and_add(&dir->kobj, &dir_type, parent, "%s", name);
	for (; !err && nr_knobs--; knob++)
		err = sysfs_create_file(&dir->kobj, &knob->attr);
	return err ? ERR_PTR(err) : dir;
}

static int files_add_policy(struct mmp_profile *profile, struct kobject *parent,
			    const struct mmp_policy *policy)
{
	if (!policy->nr_knobs)
		return 0;
	return PTR_ERR_OR_ZERO(files_add_dir(profile, parent, policy->point, policy->name,
					     policy->knobs, policy->nr_knobs));
}

static int files_add_point(struct mmp_profile *profile, struct kobject *parent,
			   enum mm_policy_point point)
{
	const struct mmp_point *p = mmp_parts->points[point];
	const struct mmp_policy *policy;
	struct mmp_dir *dir;
	int i, err;

	dir = files_add_dir(profile, parent, point, p->name, p->knobs, p->nr_knobs);
	if (IS_ERR(dir))
		return PTR_ERR(dir);
	err = sysfs_create_file(&dir->kobj, &policy_attr);
	if (!err && p->shadows)
		err = sysfs_create_file(&dir->kobj, &shadow_attr);
	for_each_policy(policy, i)
		if (!err && policy->point == point)
			err = files_add_policy(profile, &dir->kobj, policy);
	return err;
}

static void files_remove_profile(struct mmp_profile *profile)
{
	struct mmp_dir *dir, *next;

	list_for_each_entry_safe_reverse(dir, next, &profile->dirs, node) {
		list_del(&dir->node);
		kobject_put(&dir->kobj);
	}
}

static int files_add_profile(struct mmp_profile *profile)
{
	const struct bin_attribute *const *file;
	struct mmp_dir *dir;
	int i, err = 0;

	dir = files_add_dir(profile, profiles, 0, profile->name, NULL, 0);
	if (IS_ERR(dir))
		return PTR_ERR(dir);
	for (file = mmp_binding_files; !err && *file; file++)
		err = sysfs_create_bin_file(&dir->kobj, *file);
	for (i = 0; !err && i < MM_POLICY_POINTS; i++)
		if (profile == &mmp_default || !mmp_parts->points[i]->host)
			err = files_add_point(profile, &dir->kobj, i);
	return err;
}

/*
 * Removes the files of deleted profiles and frees the profiles. Called without
 * mmp_lock, as removing a file waits for its writers, and writers take
 * mmp_lock.
 */
static void files_sweep(void)
{
	struct mmp_profile *profile, *next;
	LIST_HEAD(gone);

	lockdep_assert_held(&mmp_files_lock);
	mmp_profiles_gone(&gone);
	if (list_empty(&gone))
		return;
	list_for_each_entry(profile, &gone, node) {
		mmp_debugfs_remove(profile);
		files_remove_profile(profile);
	}
	synchronize_rcu();
	list_for_each_entry_safe(profile, next, &gone, node)
		mmp_profile_free(profile);
}

/**
 * mmp_profile_files_sweep - remove the files of deleted profiles, and free the profiles
 *
 * Context: not in a write to a file of such a profile; not under mmp_lock.
 */
void mmp_profile_files_sweep(void)
{
	guard(mutex)(&mmp_files_lock);
	files_sweep();
}

/* Finds a subdirectory of @in, or of the profile's own directory; %NULL if there is none. */
static struct mmp_dir *files_find(const struct mmp_profile *profile, const struct mmp_dir *in,
				  const char *name)
{
	struct mmp_dir *dir;

	in = in ?: list_first_entry(&profile->dirs, struct mmp_dir, node);
	list_for_each_entry(dir, &profile->dirs, node)
		if (dir->kobj.parent == &in->kobj && !strcmp(kobject_name(&dir->kobj), name))
			return dir;
	return NULL;
}

/**
 * mmp_policy_files_add - add the knobs of a policy, at their defaults, to all profiles
 * @policy: the policy; no profile can have it before this returns
 *
 * Context: under mmp_files_lock and mmp_lock.
 * Return: 0 or an error. mmp_policy_files_remove() cleans up in either case.
 */
int mmp_policy_files_add(const struct mmp_policy *policy)
{
	struct mmp_profile *profile;
	int err = mmp_knob_files_add(policy);

	lockdep_assert_held(&mmp_files_lock);
	mmp_settings_default(mmp_stock, policy);
	list_for_each_entry(profile, &mmp_profiles, node) {
		const char *name = mmp_parts->points[policy->point]->name;
		struct mmp_dir *point = files_find(profile, NULL, name);

		mmp_settings_default(rcu_dereference_protected(profile->settings, true), policy);
		if (!err && point)
			err = files_add_policy(profile, &point->kobj, policy);
	}
	return err;
}

/**
 * mmp_policy_files_remove - remove the knobs of a policy from all profiles
 * @policy: the policy; no profile has it
 *
 * Context: under mmp_files_lock; not under mmp_lock.
 */
void mmp_policy_files_remove(const struct mmp_policy *policy)
{
	struct mmp_profile *profile;
	struct mmp_dir *dir, *next;
	LIST_HEAD(dirs);

	files_sweep();
	mmp_knob_files_remove(policy);
	scoped_guard(mutex, &mmp_lock)
		list_for_each_entry(profile, &mmp_profiles, node) {
			dir = files_find(profile, NULL, mmp_parts->points[policy->point]->name);
			dir = dir ? files_find(profile, dir, policy->name) : NULL;
			if (dir)
				list_move(&dir->node, &dirs);
		}
	list_for_each_entry_safe(dir, next, &dirs, node)
		kobject_put(&dir->kobj);
}

static int files_create(const char *name)
{
	struct mmp_profile *profile;
	int err;

	guard(mutex)(&mmp_files_lock);
	files_sweep();
	profile = mmp_profile_new(name);
	if (IS_ERR(profile))
		return PTR_ERR(profile);
	err = files_add_profile(profile) ?: mmp_profile_link(profile);
	if (err) {
		files_remove_profile(profile);
		mmp_profile_free(profile);
	} else {
		mmp_debugfs_add(profile);
	}
	return err;
}

static ssize_t files_create_store(struct kobject *kobj, struct kobj_attribute *attr,
				  const char *buf, size_t count)
{
	return files_create(buf) ?: count;
}

static struct kobj_attribute create_attr =
	__ATTR(create, 0200, NULL, files_create_store);

static ssize_t files_delete_store(struct kobject *kobj, struct kobj_attribute *attr,
				  const char *buf, size_t count)
{
	int err = mmp_profile_delete(buf);

	if (err)
		return err;
	mmp_profile_files_sweep();
	mmp_switches_settle();
	return count;
}

static struct kobj_attribute delete_attr =
	__ATTR(delete, 0200, NULL, files_delete_store);

static const struct attribute *const create_files[] = {
	&create_attr.attr,
	&delete_attr.attr,
	NULL
};

/**
 * mmp_profile_files_init - make the directory of all profiles, and "default" in it
 * @parent: parent directory
 *
 * Return: 0 or an error. mmp_profile_files_exit() cleans up in either case.
 */
int mmp_profile_files_init(struct kobject *parent)
{
	profiles = kobject_create_and_add("profiles", parent);
	if (!profiles)
		return -ENOMEM;
	guard(mutex)(&mmp_files_lock);
	return files_add_profile(&mmp_default) ?:
	       sysfs_create_files(profiles, create_files);
}

/*
 * Removes the files "create" and "delete". No profile can be made or deleted
 * afterwards.
 */
void mmp_profile_files_freeze(void)
{
	if (profiles)
		sysfs_remove_files(profiles, create_files);
}

/*
 * Removes the directory of profiles at unload. All profiles but "default" have
 * been deleted before.
 */
void mmp_profile_files_exit(void)
{
	files_remove_profile(&mmp_default);
	kobject_put(profiles);
}
