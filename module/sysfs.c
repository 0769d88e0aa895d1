// SPDX-License-Identifier: GPL-2.0
/* /sys/kernel/mmpolicy: see docs/sysfs-abi.txt. One value per file. */
#include <linux/cleanup.h>
#include <linux/kstrtox.h>
#include <linux/slab.h>

#include "mmpolicy.h"

#define MMP_ABI		1
#define LONGEST	64	/* kernfs cuts what is longer than a page */

static struct kobject *root, *profiles;

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

static ssize_t show_knob(const struct dir *dir, const struct mmp_knob *knob,
			 char *buf)
{
	guard(rcu)();
	return sysfs_emit(buf, "%u\n",
			  rcu_dereference(dir->profile->settings)->values[knob->slot]);
}

static int store_knob(const struct dir *dir, const struct mmp_knob *knob,
		      const char *buf)
{
	s64 value;
	int err = kstrtos64(buf, 10, &value);

	if (err)
		return err;
	if (value < knob->min || value > knob->max)
		return -ERANGE;
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
				 buf);
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

static int add_profile(struct mmp_profile *profile)
{
	struct dir *dir;
	int i, err = 0;

	dir = add_dir(profile, profiles, 0, profile->name, NULL, 0);
	if (IS_ERR(dir))
		return PTR_ERR(dir);
	for (i = 0; !err && i < MM_POLICY_POINTS; i++)
		err = add_point(profile, &dir->kobj, i);
	return err;
}

static ssize_t abi_show(struct kobject *kobj, struct kobj_attribute *attr,
			char *buf)
{
	return sysfs_emit(buf, "%d\n", MMP_ABI);
}

static struct kobj_attribute abi_attr = __ATTR_RO(abi);

static ssize_t state_show(struct kobject *kobj, struct kobj_attribute *attr,
			  char *buf)
{
	return sysfs_emit(buf, "%s\n", mmp_active() ? "active" : "stock");
}

static struct kobj_attribute state_attr = __ATTR_RO(state);

static ssize_t reset_store(struct kobject *kobj, struct kobj_attribute *attr,
			   const char *buf, size_t count)
{
	if (!sysfs_streq(buf, "1"))
		return -EINVAL;
	mmp_reset(&mmp_default);
	return count;
}

static struct kobj_attribute reset_attr = __ATTR_WO(reset);

static const struct attribute *root_attrs[] = {
	&abi_attr.attr,
	&state_attr.attr,
	&reset_attr.attr,
	NULL
};

/**
 * mmp_sysfs_init - make /sys/kernel/mmpolicy
 *
 * Return: 0 or an error, with nothing left.
 */
int mmp_sysfs_init(void)
{
	int err = -ENOMEM;

	root = kobject_create_and_add("mmpolicy", kernel_kobj);
	if (!root)
		return err;
	profiles = kobject_create_and_add("profiles", root);
	if (!profiles)
		goto remove;
	err = sysfs_create_files(root, root_attrs);
	if (err)
		goto remove;
	err = add_profile(&mmp_default);
	if (err)
		goto remove;
	return 0;

remove:
	mmp_sysfs_exit();
	return err;
}

/* Returns after the last reader and writer of a file. */
void mmp_sysfs_exit(void)
{
	remove_profile(&mmp_default);
	kobject_put(profiles);
	kobject_put(root);
}
