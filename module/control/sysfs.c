// SPDX-License-Identifier: GPL-2.0
/*
 * The sysfs files in /sys/kernel/mmpolicy, one value per file; see
 * docs/sysfs-abi.txt.
 */
#include <linux/cleanup.h>
#include <linux/slab.h>

#include "../provider/provider.h"
#include "control.h"

#define MMP_ABI		2

struct kobject *mmp_sysfs_root;	/* /sys/kernel/mmpolicy */
static struct kobject *experiment, *points;
static struct kobject *policies, *policies_of[MM_POLICY_POINTS];

static ssize_t mmp_abi_show(struct kobject *kobj, struct kobj_attribute *attr,
			    char *buf)
{
	return sysfs_emit(buf, "%d\n", MMP_ABI);
}

static struct kobj_attribute abi_attr = __ATTR(abi, 0444, mmp_abi_show, NULL);

static ssize_t mmp_state_show(struct kobject *kobj, struct kobj_attribute *attr,
			      char *buf)
{
	return sysfs_emit(buf, "%s\n", mmp_state());
}

static struct kobj_attribute state_attr = __ATTR(state, 0444, mmp_state_show, NULL);

static ssize_t mmp_reset_store(struct kobject *kobj, struct kobj_attribute *attr,
			       const char *buf, size_t count)
{
	if (!sysfs_streq(buf, "1"))
		return -EINVAL;
	mmp_reset();
	mmp_switches_settle();
	return count;
}

static struct kobj_attribute reset_attr = __ATTR(reset, 0200, NULL, mmp_reset_store);

static ssize_t mmp_blockers_show(struct kobject *kobj, struct kobj_attribute *attr,
				 char *buf)
{
	return mmp_provider_blockers(buf);
}

static struct kobj_attribute blockers_attr = __ATTR(blockers, 0400, mmp_blockers_show, NULL);

static ssize_t mmp_point_error_show(struct kobject *kobj, struct kobj_attribute *attr,
				    char *buf)
{
	return mmp_point_error(buf);
}

static struct kobj_attribute point_error_attr =
	__ATTR(point_error, 0444, mmp_point_error_show, NULL);

static ssize_t mmp_provider_show(struct kobject *kobj, struct kobj_attribute *attr,
				 char *buf)
{
	return sysfs_emit(buf, "%s\n", mmp_provider);
}

static struct kobj_attribute provider_attr =
	__ATTR(provider, 0444, mmp_provider_show, NULL);

static ssize_t mmp_hooked_functions_show(struct kobject *kobj, struct kobj_attribute *attr,
					 char *buf)
{
	const struct mmp_function *function;
	int i, nr, len = 0;

	function = mmp_provider_functions(&nr);
	for (i = 0; i < nr; i++, function++)
		len += sysfs_emit_at(buf, len, "%s %s\n",
				     mmp_parts->points[function->point]->name, function->name);
	return len;
}

static struct kobj_attribute hooked_functions_attr =
	__ATTR(hooked_functions, 0444, mmp_hooked_functions_show, NULL);

static ssize_t mmp_kernel_fingerprint_show(struct kobject *kobj, struct kobj_attribute *attr,
					   char *buf)
{
	return mmp_fingerprint ? sysfs_emit(buf, "%016llx\n", mmp_fingerprint) : 0;
}

static struct kobj_attribute kernel_fingerprint_attr =
	__ATTR(kernel_fingerprint, 0444, mmp_kernel_fingerprint_show, NULL);

static ssize_t mmp_kernel_tested_show(struct kobject *kobj, struct kobj_attribute *attr,
				      char *buf)
{
	if (!mmp_fingerprint)
		return 0;
	return sysfs_emit(buf, "%s\n", mmp_tested ?: "no");
}

static struct kobj_attribute kernel_tested_attr =
	__ATTR(kernel_tested, 0444, mmp_kernel_tested_show, NULL);

static ssize_t mmp_lacks_show(const char *reason, char *buf)
{
	if (reason)
		return sysfs_emit(buf, "unavailable: %s\n", reason);
	return sysfs_emit(buf, "available\n");
}

static struct kobj_attribute point_attrs[MM_POLICY_POINTS];

static ssize_t mmp_point_show(struct kobject *kobj, struct kobj_attribute *attr,
			      char *buf)
{
	return mmp_lacks_show(mmp_provider_lacks(attr - point_attrs), buf);
}

/* Creates /sys/kernel/mmpolicy/points, with a file for each policy point. */
static int points_init(void)
{
	int i, err = 0;

	points = kobject_create_and_add("points", mmp_sysfs_root);
	if (!points)
		return -ENOMEM;
	for (i = 0; i < MM_POLICY_POINTS && !err; i++) {
		point_attrs[i] = (struct kobj_attribute){
			.attr = { .name = mmp_parts->points[i]->name, .mode = 0444 },
			.show = mmp_point_show,
		};
		err = sysfs_create_file(points, &point_attrs[i].attr);
	}
	return err;
}

/* a file for each policy, in the order of mmp_parts->policies */
static struct kobj_attribute *policy_attrs;

static ssize_t mmp_policy_show(struct kobject *kobj, struct kobj_attribute *attr,
			       char *buf)
{
	return mmp_lacks_show(mmp_policy_lacks(mmp_parts->policies[attr - policy_attrs]),
			      buf);
}

static int policy_file_add(const struct mmp_policy *policy, struct kobj_attribute *attr)
{
	struct kobject **dir = &policies_of[policy->point];

	if (!*dir)
		*dir = kobject_create_and_add(mmp_parts->points[policy->point]->name,
					      policies);
	if (!*dir)
		return -ENOMEM;
	attr->attr.name = policy->name;
	attr->attr.mode = 0444;
	attr->show = mmp_policy_show;
	sysfs_attr_init(&attr->attr);
	return sysfs_create_file(*dir, &attr->attr);
}

/*
 * Creates the directory "policies", with a directory for each point and a file
 * for each policy.
 */
static int policies_init(void)
{
	const struct mmp_policy *policy;
	int i, err;

	for_each_policy(policy, i)
		;
	policies = kobject_create_and_add("policies", mmp_sysfs_root);
	policy_attrs = kcalloc(i, sizeof(*policy_attrs), GFP_KERNEL);
	if (!policies || !policy_attrs)
		return -ENOMEM;
	for_each_policy(policy, i) {
		err = policy->loadable ? 0 : policy_file_add(policy, &policy_attrs[i]);
		if (err)
			return err;
	}
	return 0;
}

static void policies_exit(void)
{
	int i;

	for (i = 0; i < MM_POLICY_POINTS; i++)
		kobject_put(policies_of[i]);
	kobject_put(policies);
	kfree(policy_attrs);
}

static const struct attribute *const root_files[] = {
	&abi_attr.attr,
	&provider_attr.attr,
	&hooked_functions_attr.attr,
	&kernel_fingerprint_attr.attr,
	&kernel_tested_attr.attr,
	&state_attr.attr,
	&blockers_attr.attr,
	&point_error_attr.attr,
	&reset_attr.attr,
	NULL
};

/**
 * mmp_sysfs_init - make /sys/kernel/mmpolicy
 *
 * Return: 0 or an error. mmp_sysfs_exit() cleans up in either case.
 */
int mmp_sysfs_init(void)
{
	int err = mmp_lease_init(mmp_reset_on_expiry);

	if (err)
		return err;
	mmp_sysfs_root = kobject_create_and_add("mmpolicy", kernel_kobj);
	if (!mmp_sysfs_root)
		return -ENOMEM;
	experiment = kobject_create_and_add("experiment", mmp_sysfs_root);
	if (!experiment)
		return -ENOMEM;
	return points_init() ?: policies_init() ?: mmp_knob_files_init(mmp_sysfs_root) ?:
	       mmp_profile_files_init(mmp_sysfs_root) ?:
	       sysfs_create_files(experiment, mmp_experiment_files) ?:
	       sysfs_create_files(mmp_sysfs_root, mmp_lease_files) ?:
	       sysfs_create_files(mmp_sysfs_root, root_files);
}

/*
 * Removes all files at unload. The hooks are turned off before any wait. The
 * files "create" and "delete" and the lease go first, as they could make or
 * remove other files. Each removal waits for the readers and writers of its
 * file.
 */
void mmp_sysfs_exit(void)
{
	mmp_reset_for_good();
	if (experiment) {
		sysfs_remove_files(mmp_sysfs_root, root_files);
		sysfs_remove_files(mmp_sysfs_root, mmp_lease_files);
		sysfs_remove_files(experiment, mmp_experiment_files);
	}
	mmp_profile_files_freeze();
	mmp_lease_exit();
	mmp_reset_exit();
	mmp_profile_files_exit();
	mmp_knob_files_exit();
	policies_exit();
	kobject_put(points);
	kobject_put(experiment);
	kobject_put(mmp_sysfs_root);
}
