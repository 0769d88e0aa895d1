// SPDX-License-Identifier: GPL-2.0
/*
 * The experiment (A/B test): it compares two profiles, its arms "control" and
 * "treatment". Units (processes or cgroups) without a binding take part.
 * sense/arm.c assigns each unit to an arm.
 */
#include <linux/atomic.h>
#include <linux/cgroup.h>
#include <linux/cleanup.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "../sense/arm.h"
#include "../sense/fault_time.h"
#include "../provider/provider.h"
#include "control.h"

#define DEFAULTS	{ .percent = 50 }

/*
 * Setup of the experiment. Writers hold mmp_lock and setup_lock; readers take
 * setup_lock alone, so they do not wait for a writer of other files.
 */
static struct mmp_experiment setup = DEFAULTS;
static DEFINE_MUTEX(setup_lock);

static struct mmp_experiment *experiment_running(void)
{
	return rcu_dereference_protected(mmp_running, lockdep_is_held(&mmp_lock));
}

/*
 * Starts or stops timing faults. Timing needs the hook in every fault, even if
 * no profile has a policy.
 */
static void experiment_time(bool on)
{
	if (!mmp_fault_time(on))
		return;
	mm_policy_enable(mmp_parts->ops, MM_POLICY_ANON_PAGES, on);
	mmp_switch_hold(MM_POLICY_ANON_ORDER, on);
}

/*
 * Stops the experiment. The counts of units stay readable until the next start.
 */
static void experiment_stop(void)
{
	struct mmp_experiment *old = experiment_running();

	if (!old)
		return;
	RCU_INIT_POINTER(mmp_running, NULL);
	mmp_whose_outdate_tasks();
	mmp_scope_end();
	experiment_time(false);
	kfree_rcu(old, rcu);
}

static int experiment_publish(void)
{
	struct mmp_experiment *new = kmemdup(&setup, sizeof(setup), GFP_KERNEL);
	struct mmp_experiment *old = experiment_running();

	if (!new)
		return -ENOMEM;
	rcu_assign_pointer(mmp_running, new);
	mmp_whose_outdate_tasks();
	if (old)
		kfree_rcu(old, rcu);
	return 0;
}

static void experiment_replace_units(struct mmp_units *new)
{
	struct mmp_units *old = setup.units;

	scoped_guard(mutex, &setup_lock)
		setup.units = new;
	if (old) {
		synchronize_rcu();
		kvfree(old);
	}
}

static int experiment_begin(void)
{
	struct mmp_units *units = kvzalloc(sizeof(*units), GFP_KERNEL);
	int err;

	if (!units)
		return -ENOMEM;
	experiment_replace_units(units);
	err = mmp_scope_begin();
	if (err)
		return err;
	err = experiment_publish();
	if (err)
		mmp_scope_end();
	return err;
}

static int experiment_start(void)
{
	int err;

	if (experiment_running())
		return 0;
	if (!setup.arm[MMP_CONTROL] || !setup.arm[MMP_TREATMENT])
		return -EINVAL;
	if (setup.time_faults && mmp_provider_lacks(MM_POLICY_ANON_ORDER))
		return -EOPNOTSUPP;
	err = experiment_begin();
	if (!err)
		experiment_time(setup.time_faults);
	return err;
}

static void experiment_set_arm(enum mmp_arm arm, struct mmp_profile *profile)
{
	if (setup.arm[arm])
		atomic_dec(&setup.arm[arm]->users);
	if (profile)
		atomic_inc(&profile->users);
	scoped_guard(mutex, &setup_lock)
		setup.arm[arm] = profile;
}

/**
 * mmp_experiment_clear - stop the experiment and restore its default setup
 *
 * Context: under mmp_lock; may sleep.
 */
void mmp_experiment_clear(void)
{
	experiment_stop();
	experiment_replace_units(NULL);
	experiment_set_arm(MMP_CONTROL, NULL);
	experiment_set_arm(MMP_TREATMENT, NULL);
	scoped_guard(mutex, &setup_lock)
		setup = (struct mmp_experiment)DEFAULTS;
}

/**
 * mmp_experiment_units - print how many units (processes or cgroups) of each arm
 * had a fault
 * @m: output
 */
void mmp_experiment_units(struct seq_file *m)
{
	const struct mmp_units *units;

	guard(mutex)(&setup_lock);
	units = setup.units;
	seq_printf(m, "control %d\n", units ? atomic_read(&units->nr[MMP_CONTROL]) : 0);
	seq_printf(m, "treatment %d\n", units ? atomic_read(&units->nr[MMP_TREATMENT]) : 0);
	seq_printf(m, "full %d\n", units && READ_ONCE(units->full));
}

/* Files of the experiment */

static int experiment_may_set_up(void)
{
	int err = mmp_may_change(NULL);

	return err ?: experiment_running() ? -EBUSY : 0;
}

static ssize_t experiment_arm_show(enum mmp_arm arm, char *buf)
{
	guard(mutex)(&setup_lock);
	return sysfs_emit(buf, "%s\n",
			  setup.arm[arm] ? setup.arm[arm]->name : "none");
}

static int experiment_choose_arm(enum mmp_arm arm, const char *name)
{
	struct mmp_profile *profile = NULL;

	if (!sysfs_streq(name, "") && !sysfs_streq(name, "none")) {
		profile = mmp_profile_find(name);
		if (!profile)
			return -ENOENT;
		if (profile == &mmp_default || profile == setup.arm[!arm])
			return -EINVAL;
	}
	experiment_set_arm(arm, profile);
	return 0;
}

static ssize_t experiment_arm_store(enum mmp_arm arm, const char *buf, size_t count)
{
	int err;

	guard(mutex)(&mmp_lock);
	err = experiment_may_set_up() ?: experiment_choose_arm(arm, buf);
	return err ?: count;
}

#define ARM_FILE(name, arm)						\
static ssize_t experiment_##name##_show(struct kobject *kobj,		\
					struct kobj_attribute *attr,	\
					char *buf)			\
{									\
	return experiment_arm_show(arm, buf);				\
}									\
									\
static ssize_t experiment_##name##_store(struct kobject *kobj,		\
					 struct kobj_attribute *attr,	\
					 const char *buf, size_t count)	\
{									\
	return experiment_arm_store(arm, buf, count);			\
}									\
									\
static struct kobj_attribute name##_attr =				\
	__ATTR(name, 0644, experiment_##name##_show, experiment_##name##_store)

ARM_FILE(control, MMP_CONTROL);
ARM_FILE(treatment, MMP_TREATMENT);

static ssize_t experiment_unit_show(struct kobject *kobj, struct kobj_attribute *attr,
				    char *buf)
{
	guard(mutex)(&setup_lock);
	return sysfs_emit(buf, "%s\n", setup.by_cgroup ? "process [cgroup]" :
							 "[process] cgroup");
}

static ssize_t experiment_unit_store(struct kobject *kobj, struct kobj_attribute *attr,
				     const char *buf, size_t count)
{
	bool by_cgroup = sysfs_streq(buf, "cgroup");
	int err;

	if (!by_cgroup && !sysfs_streq(buf, "process"))
		return -EINVAL;
	guard(mutex)(&mmp_lock);
	err = experiment_may_set_up();
	if (err)
		return err;
	guard(mutex)(&setup_lock);
	setup.by_cgroup = by_cgroup;
	return count;
}

static struct kobj_attribute unit_attr =
	__ATTR(unit, 0644, experiment_unit_show, experiment_unit_store);

/**
 * struct number_file - a sysfs file that holds a number
 * @attr: the file
 * @max: largest value accepted
 * @get: returns the value; called under setup_lock
 * @set: changes the value; called under mmp_lock
 * @ready: called before @set and without mmp_lock; or %NULL
 */
struct number_file {
	struct kobj_attribute attr;
	u64 max;
	u64 (*get)(void);
	int (*set)(u64 value);
	int (*ready)(u64 value);
};

static u64 experiment_get_percent(void)
{
	return setup.percent;
}

static void experiment_put_percent(u32 percent)
{
	guard(mutex)(&setup_lock);
	setup.percent = percent;
}

/*
 * Sets the percentage of units in the treatment arm, which may change while the
 * experiment runs.
 */
static int experiment_set_percent(u64 value)
{
	u32 was = setup.percent;
	int err;

	experiment_put_percent(value);
	err = experiment_running() ? experiment_publish() : 0;
	if (err)
		experiment_put_percent(was);
	return err;
}

static u64 experiment_get_seed(void)
{
	return setup.seed;
}

static int experiment_set_seed(u64 value)
{
	if (experiment_running())
		return -EBUSY;
	scoped_guard(mutex, &setup_lock)
		setup.seed = value;
	return 0;
}

static u64 experiment_get_cgroup(void)
{
	return setup.cgroup;
}

static int experiment_set_cgroup(u64 value)
{
	struct cgroup *cgroup;
	int level = setup.level;

	if (experiment_running())
		return -EBUSY;
	if (value) {
		cgroup = cgroup_get_from_id(value);
		if (IS_ERR(cgroup))
			return -ENOENT;
		level = cgroup->level;
		cgroup_put(cgroup);
	}
	guard(mutex)(&setup_lock);
	setup.level = level;
	setup.cgroup = value;
	return 0;
}

static u64 experiment_get_time_faults(void)
{
	return setup.time_faults;
}

static int experiment_set_time_faults(u64 value)
{
	if (experiment_running())
		return -EBUSY;
	if (value && mmp_provider_lacks(MM_POLICY_ANON_PAGES))
		return -EOPNOTSUPP;
	scoped_guard(mutex, &setup_lock)
		setup.time_faults = value;
	return 0;
}

static u64 experiment_get_enabled(void)
{
	return !!rcu_access_pointer(mmp_running);
}

static int experiment_set_enabled(u64 value)
{
	if (value)
		return experiment_start();
	experiment_stop();
	return 0;
}

/*
 * Attaches the hooks that timing faults needs, before the experiment is enabled, because the kernel
 * may refuse to attach them.
 */
static int experiment_ready(u64 value)
{
	bool timed;

	scoped_guard(mutex, &setup_lock)
		timed = setup.time_faults;
	return value && timed ? mmp_switch_ready(MM_POLICY_ANON_ORDER) : 0;
}

static void experiment_settle(void)
{
	scoped_guard(mutex, &mmp_lock)
		mmp_switch_release(MM_POLICY_ANON_ORDER);
	mmp_switches_settle();
}

static ssize_t experiment_number_show(struct kobject *kobj, struct kobj_attribute *attr,
				      char *buf)
{
	const struct number_file *n = container_of(attr, struct number_file, attr);

	guard(mutex)(&setup_lock);
	return sysfs_emit(buf, "%llu\n", n->get());
}

static ssize_t experiment_number_store(struct kobject *kobj, struct kobj_attribute *attr,
				       const char *buf, size_t count)
{
	const struct number_file *n = container_of(attr, struct number_file, attr);
	u64 value;
	int err = mmp_parse(buf, count, 0, n->max, &value);

	if (err)
		return err;
	err = n->ready ? n->ready(value) : 0;
	if (err)
		return err;
	scoped_guard(mutex, &mmp_lock)
		err = mmp_may_change(NULL) ?: n->set(value);
	if (n->ready)
		experiment_settle();
	return err ?: count;
}

#define NUMBER_FILE(name, highest, ...)					\
static struct number_file name##_number = {					\
	.attr = __ATTR(name, 0644, experiment_number_show,		\
		       experiment_number_store),			\
	.max = (highest),						\
	.get = experiment_get_##name,					\
	.set = experiment_set_##name,					\
	__VA_ARGS__							\
}

NUMBER_FILE(percent, 100);
NUMBER_FILE(seed, U64_MAX);
NUMBER_FILE(cgroup, U64_MAX);
NUMBER_FILE(time_faults, 1);
NUMBER_FILE(enabled, 1, .ready = experiment_ready);

const struct attribute *const mmp_experiment_files[] = {
	&control_attr.attr,
	&treatment_attr.attr,
	&unit_attr.attr,
	&percent_number.attr.attr,
	&seed_number.attr.attr,
	&cgroup_number.attr.attr,
	&time_faults_number.attr.attr,
	&enabled_number.attr.attr,
	NULL
};
