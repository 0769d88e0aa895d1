// SPDX-License-Identifier: GPL-2.0
/* /sys/kernel/mmpolicy: see docs/sysfs-abi.txt. One value per file. */
#include <linux/cleanup.h>
#include <linux/kstrtox.h>
#include <linux/slab.h>

#include "control.h"

#define MMP_ABI		1
#define LONGEST	64	/* kernfs cuts what is longer than a page */

static struct kobject *root, *profiles, *experiment;

/* For making and removing the files of profiles. Taken before mmp_lock. */
static DEFINE_MUTEX(files_lock);

/**
 * struct dir - the directory of a point, or of one of its policies
 * @kobj: the directory
 * @node: in mmp_profile.dirs
 * @profile: whose it is
 * @point: which point
 */
struct dir {
	struct kobject kobj;
	struct list_head node;
	struct mmp_profile *profile;
	enum mm_policy_point point;
};

static struct attribute policy_attr = { .name = "policy", .mode = 0644 };

static ssize_t show_choice(char *buf, ssize_t len, const char *name, bool on)
{
	return sysfs_emit_at(buf, len, on ? "%s[%s]" : "%s%s", len ? " " : "",
			     name);
}

static ssize_t show_policy(const struct dir *dir, char *buf)
{
	const struct mmp_policy *active, *policy;
	ssize_t len;
	int i;

	guard(rcu)();
	active = rcu_dereference(dir->profile->settings)->active[dir->point];
	len = show_choice(buf, 0, "stock", !active);
	for_each_policy(policy, i)
		if (policy->point == dir->point)
			len += show_choice(buf, len, policy->name,
					   policy == active);
	return len + sysfs_emit_at(buf, len, "\n");
}

static int store_policy(const struct dir *dir, const char *buf)
{
	const struct mmp_policy *policy = NULL;

	if (!sysfs_streq(buf, "stock")) {
		policy = mmp_policy_find(dir->point, buf);
		if (!policy)
			return -EINVAL;
	}
	return mmp_set_policy(dir->profile, dir->point, policy);
}

/**
 * mmp_parse - read a number
 * @buf: one newline may follow
 * @count: length of what was written
 * @min: smallest value accepted
 * @max: largest value accepted
 * @value: where to
 *
 * Return: 0, -EINVAL or -ERANGE.
 */
int mmp_parse(const char *buf, size_t count, u64 min, u64 max, u64 *value)
{
	s64 negative;
	int err;

	if (count > LONGEST)
		return -EINVAL;
	if (*buf == '-')
		return kstrtos64(buf, 10, &negative) ?: -ERANGE;
	err = kstrtou64(buf, 10, value);
	if (err)
		return err;
	return *value < min || *value > max ? -ERANGE : 0;
}

static ssize_t show_knob(const struct dir *dir, const struct mmp_knob *knob,
			 char *buf)
{
	guard(rcu)();
	return sysfs_emit(buf, "%u\n",
			  rcu_dereference(dir->profile->settings)->values[knob->slot]);
}

static int store_knob(const struct dir *dir, const struct mmp_knob *knob,
		      const char *buf, size_t count)
{
	u64 value;
	int err = mmp_parse(buf, count, knob->min, knob->max, &value);

	if (err)
		return err;
	return mmp_set_knob(dir->profile, knob, value);
}

static ssize_t dir_show(struct kobject *kobj, struct attribute *attr, char *buf)
{
	const struct dir *dir = container_of(kobj, struct dir, kobj);

	if (attr == &policy_attr)
		return show_policy(dir, buf);
	return show_knob(dir, container_of(attr, struct mmp_knob, attr), buf);
}

static ssize_t dir_store(struct kobject *kobj, struct attribute *attr,
			 const char *buf, size_t count)
{
	const struct dir *dir = container_of(kobj, struct dir, kobj);
	int err;

	if (count > LONGEST)
		return -EINVAL;
	if (attr == &policy_attr)
		err = store_policy(dir, buf);
	else
		err = store_knob(dir, container_of(attr, struct mmp_knob, attr),
				 buf, count);
	return err ?: count;
}

static const struct sysfs_ops dir_ops = {
	.show = dir_show,
	.store = dir_store,
};

static void dir_release(struct kobject *kobj)
{
	kfree(container_of(kobj, struct dir, kobj));
}

static const struct kobj_type dir_type = {
	.sysfs_ops = &dir_ops,
	.release = dir_release,
};

/* A directory with knobs; it belongs to the profile in any case but NULL. */
static struct dir *add_dir(struct mmp_profile *profile, struct kobject *parent,
			   enum mm_policy_point point, const char *name,
			   const struct mmp_knob *knob, unsigned int nr_knobs)
{
	struct dir *dir = kzalloc(sizeof(*dir), GFP_KERNEL);
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

static int add_point(struct mmp_profile *profile, struct kobject *parent,
		     enum mm_policy_point point)
{
	const struct mmp_point *p = mmp_points[point];
	const struct mmp_policy *policy;
	struct dir *dir, *sub;
	int i, err;

	dir = add_dir(profile, parent, point, p->name, p->knobs, p->nr_knobs);
	if (IS_ERR(dir))
		return PTR_ERR(dir);
	err = sysfs_create_file(&dir->kobj, &policy_attr);
	if (err)
		return err;
	for_each_policy(policy, i) {
		if (policy->point != point || !policy->nr_knobs)
			continue;
		sub = add_dir(profile, &dir->kobj, point, policy->name,
			      policy->knobs, policy->nr_knobs);
		if (IS_ERR(sub))
			return PTR_ERR(sub);
	}
	return 0;
}

static void remove_profile(struct mmp_profile *profile)
{
	struct dir *dir, *next;

	list_for_each_entry_safe_reverse(dir, next, &profile->dirs, node) {
		list_del(&dir->node);
		kobject_put(&dir->kobj);
	}
}

/* The profile of its directory in "profiles". */
struct mmp_profile *mmp_profile_of_dir(struct kobject *kobj)
{
	return container_of(kobj, struct dir, kobj)->profile;
}

static int add_profile(struct mmp_profile *profile)
{
	const struct bin_attribute *const *file;
	struct dir *dir;
	int i, err = 0;

	dir = add_dir(profile, profiles, 0, profile->name, NULL, 0);
	if (IS_ERR(dir))
		return PTR_ERR(dir);
	for (file = mmp_binding_files; !err && *file; file++)
		err = sysfs_create_bin_file(&dir->kobj, *file);
	for (i = 0; !err && i < MM_POLICY_POINTS; i++)
		if (profile == &mmp_default || !mmp_points[i]->host)
			err = add_point(profile, &dir->kobj, i);
	return err;
}

/* Removing a file waits for those who write to it, and they want mmp_lock. */
static void sweep(void)
{
	struct mmp_profile *profile, *next;
	LIST_HEAD(gone);

	lockdep_assert_held(&files_lock);
	mmp_profiles_gone(&gone);
	if (list_empty(&gone))
		return;
	list_for_each_entry(profile, &gone, node) {
		mmp_debugfs_remove(profile);
		remove_profile(profile);
	}
	synchronize_rcu();
	list_for_each_entry_safe(profile, next, &gone, node)
		mmp_profile_free(profile);
}

/**
 * mmp_sysfs_sweep - remove the files of profiles that are deleted, and free them
 *
 * Context: not in a write to a file of such a profile; not under mmp_lock.
 */
void mmp_sysfs_sweep(void)
{
	guard(mutex)(&files_lock);
	sweep();
}

static int create(const char *name)
{
	struct mmp_profile *profile;
	int err;

	guard(mutex)(&files_lock);
	sweep();
	profile = mmp_profile_new(name);
	if (IS_ERR(profile))
		return PTR_ERR(profile);
	err = add_profile(profile) ?: mmp_profile_link(profile);
	if (err) {
		remove_profile(profile);
		mmp_profile_free(profile);
	} else {
		mmp_debugfs_add(profile);
	}
	return err;
}

static ssize_t create_store(struct kobject *kobj, struct kobj_attribute *attr,
			    const char *buf, size_t count)
{
	return create(buf) ?: count;
}

static struct kobj_attribute create_attr = __ATTR_WO(create);

static ssize_t delete_store(struct kobject *kobj, struct kobj_attribute *attr,
			    const char *buf, size_t count)
{
	int err = mmp_profile_delete(buf);

	if (err)
		return err;
	mmp_sysfs_sweep();
	return count;
}

static struct kobj_attribute delete_attr = __ATTR_WO(delete);

static const struct attribute *const profiles_files[] = {
	&create_attr.attr,
	&delete_attr.attr,
	NULL
};

static ssize_t abi_show(struct kobject *kobj, struct kobj_attribute *attr,
			char *buf)
{
	return sysfs_emit(buf, "%d\n", MMP_ABI);
}

static struct kobj_attribute abi_attr = __ATTR_RO(abi);

/* A reset or an expiry is over when it is seen here, also for the files. */
static ssize_t state_show(struct kobject *kobj, struct kobj_attribute *attr,
			  char *buf)
{
	ssize_t len;

	scoped_guard(mutex, &mmp_lock)
		len = sysfs_emit(buf, "%s\n", mmp_expired() ? "expired" :
				 mmp_active() ? "active" : "stock");
	mmp_sysfs_sweep();
	return len;
}

static struct kobj_attribute state_attr = __ATTR_RO(state);

static void reset(void)
{
	scoped_guard(mutex, &mmp_lock)
		mmp_all_stock();
	mmp_sysfs_sweep();
}

static ssize_t reset_store(struct kobject *kobj, struct kobj_attribute *attr,
			   const char *buf, size_t count)
{
	if (!sysfs_streq(buf, "1"))
		return -EINVAL;
	reset();
	return count;
}

static struct kobj_attribute reset_attr = __ATTR_WO(reset);

static const struct attribute *const root_files[] = {
	&abi_attr.attr,
	&state_attr.attr,
	&reset_attr.attr,
	NULL
};

static int add_dirs(void)
{
	root = kobject_create_and_add("mmpolicy", kernel_kobj);
	if (!root)
		return -ENOMEM;
	profiles = kobject_create_and_add("profiles", root);
	experiment = kobject_create_and_add("experiment", root);
	return profiles && experiment ? 0 : -ENOMEM;
}

/**
 * mmp_sysfs_init - make /sys/kernel/mmpolicy
 *
 * Return: 0 or an error. mmp_sysfs_exit() cleans up in either case.
 */
int mmp_sysfs_init(void)
{
	guard(mutex)(&files_lock);
	return add_dirs() ?: add_profile(&mmp_default) ?:
	       sysfs_create_files(experiment, mmp_experiment_files) ?:
	       sysfs_create_files(profiles, profiles_files) ?:
	       sysfs_create_files(root, mmp_lease_files) ?:
	       sysfs_create_files(root, root_files);
}

/*
 * First those files whose writes could make other files, or a lease that would
 * remove them. Each removal returns after the last reader and writer.
 */
static void remove_files(void)
{
	sysfs_remove_files(root, root_files);
	sysfs_remove_files(root, mmp_lease_files);
	sysfs_remove_files(profiles, profiles_files);
	sysfs_remove_files(experiment, mmp_experiment_files);
}

/* Everything is stock afterwards, and no file is left. */
void mmp_sysfs_exit(void)
{
	if (profiles && experiment)
		remove_files();
	mmp_lease_exit();
	reset();
	remove_profile(&mmp_default);
	kobject_put(experiment);
	kobject_put(profiles);
	kobject_put(root);
}
