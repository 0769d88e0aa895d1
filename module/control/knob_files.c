// SPDX-License-Identifier: GPL-2.0
/*
 * The sysfs directory "knobs": bounds, default and meaning of each knob, common
 * to all profiles.
 */
#include <linux/slab.h>

#include "control.h"

/*
 * A sysfs directory of a point, of a policy, or of a knob. @knob is NULL unless
 * it is the directory of a knob.
 */
struct knob_dir {
	struct kobject kobj;
	struct list_head node;
	const struct mmp_knob *knob;
};

static LIST_HEAD(knob_dirs);	/* all directories, parents first */

struct knob_file {
	struct attribute attr;
	ssize_t (*show)(const struct mmp_knob *knob, char *buf);
};

#define KNOB_FILE(_name, _format, _value)				\
static ssize_t knob_show_##_name(const struct mmp_knob *knob, char *buf) \
{									\
	return sysfs_emit(buf, _format "\n", (_value));			\
}									\
static struct knob_file knob_file_##_name = {				\
	{ .name = #_name, .mode = 0444 }, knob_show_##_name		\
}

KNOB_FILE(min, "%u", knob->min);
KNOB_FILE(max, "%u", knob->max);
KNOB_FILE(default, "%u", knob->def);
KNOB_FILE(unit, "%s", knob->unit);
KNOB_FILE(meaning, "%s", knob->meaning);

static const struct attribute *const knob_files[] = {
	&knob_file_min.attr,
	&knob_file_max.attr,
	&knob_file_default.attr,
	&knob_file_unit.attr,
	&knob_file_meaning.attr,
	NULL
};

static ssize_t knob_file_show(struct kobject *kobj, struct attribute *attr, char *buf)
{
	const struct knob_dir *dir = container_of(kobj, struct knob_dir, kobj);

	return container_of(attr, struct knob_file, attr)->show(dir->knob, buf);
}

static void knob_dir_release(struct kobject *kobj)
{
	kfree(container_of(kobj, struct knob_dir, kobj));
}

static const struct sysfs_ops knob_dir_ops = { .show = knob_file_show };

static const struct kobj_type knob_dir_type = {
	.sysfs_ops = &knob_dir_ops,
	.release = knob_dir_release,
};

/*
 * Adds the sysfs directory @name to @parent; with @knob, also the files that
 * describe this knob. mmp_knob_files_exit() removes the directory, even after
 * an error.
 */
static struct knob_dir *knob_files_add(struct kobject *parent, const char *name,
				       const struct mmp_knob *knob)
{
	struct knob_dir *dir = kzalloc(sizeof(*dir), GFP_KERNEL);
	int err;

	if (!dir)
		return ERR_PTR(-ENOMEM);
	dir->knob = knob;
	list_add_tail(&dir->node, &knob_dirs);
	err = kobject_init_and_add(&dir->kobj, &knob_dir_type, parent, "%s", name);
	if (!err && knob)
		err = sysfs_create_files(&dir->kobj, knob_files);
	return err ? ERR_PTR(err) : dir;
}

/* Makes the directory of a point or a policy, and those of its knobs. */
static struct knob_dir *knob_files_add_all(struct kobject *parent, const char *name,
					   const struct mmp_knob *knob, unsigned int nr)
{
	struct knob_dir *dir = knob_files_add(parent, name, NULL);
	struct knob_dir *sub;

	for (; !IS_ERR(dir) && nr--; knob++) {
		sub = knob_files_add(&dir->kobj, knob->attr.name, knob);
		if (IS_ERR(sub))
			return sub;
	}
	return dir;
}

static int knob_files_add_policy(struct knob_dir *point, const struct mmp_policy *policy)
{
	if (!policy->nr_knobs)
		return 0;
	return PTR_ERR_OR_ZERO(knob_files_add_all(&point->kobj, policy->name, policy->knobs,
						  policy->nr_knobs));
}

static int knob_files_add_point(struct kobject *parent, enum mm_policy_point point)
{
	const struct mmp_point *p = mmp_parts->points[point];
	const struct mmp_policy *policy;
	struct knob_dir *dir;
	int i, err = 0;

	dir = knob_files_add_all(parent, p->name, p->knobs, p->nr_knobs);
	if (IS_ERR(dir))
		return PTR_ERR(dir);
	for_each_policy(policy, i)
		if (!err && policy->point == point)
			err = knob_files_add_policy(dir, policy);
	return err;
}

/* Returns the subdirectory of @in with this name, or NULL. */
static struct knob_dir *knob_files_find(const struct knob_dir *in, const char *name)
{
	struct knob_dir *dir;

	list_for_each_entry(dir, &knob_dirs, node)
		if (dir->kobj.parent == &in->kobj && !strcmp(kobject_name(&dir->kobj), name))
			return dir;
	return NULL;
}

static struct knob_dir *knob_files_point(enum mm_policy_point point)
{
	return knob_files_find(list_first_entry(&knob_dirs, struct knob_dir, node),
			       mmp_parts->points[point]->name);
}

/*
 * Adds the files of a policy's knobs. The caller holds mmp_files_lock, and
 * calls mmp_knob_files_remove() on errors.
 */
int mmp_knob_files_add(const struct mmp_policy *policy)
{
	return knob_files_add_policy(knob_files_point(policy->point), policy);
}

/*
 * Removes the sysfs directories of a policy and its knobs. The caller holds
 * mmp_files_lock.
 */
void mmp_knob_files_remove(const struct mmp_policy *policy)
{
	struct knob_dir *top = knob_files_find(knob_files_point(policy->point), policy->name);
	struct knob_dir *dir, *next;

	if (!top)
		return;
	list_for_each_entry_safe_reverse(dir, next, &knob_dirs, node) {
		if (dir != top && dir->kobj.parent != &top->kobj)
			continue;
		list_del(&dir->node);
		kobject_put(&dir->kobj);
	}
}

/**
 * mmp_knob_files_init - make the directory "knobs"
 * @parent: its parent directory
 *
 * Return: 0 or an error. mmp_knob_files_exit() cleans up in either case.
 */
int mmp_knob_files_init(struct kobject *parent)
{
	struct knob_dir *dir = knob_files_add(parent, "knobs", NULL);
	int i, err = PTR_ERR_OR_ZERO(dir);

	for (i = 0; !err && i < MM_POLICY_POINTS; i++)
		err = knob_files_add_point(&dir->kobj, i);
	return err;
}

/*
 * Removes the sysfs directory "knobs" with all its files. Each removal waits
 * for readers of the file, which take no lock, so this never waits for a
 * writer.
 */
void mmp_knob_files_exit(void)
{
	struct knob_dir *dir, *next;

	list_for_each_entry_safe_reverse(dir, next, &knob_dirs, node) {
		list_del(&dir->node);
		kobject_put(&dir->kobj);
	}
}
