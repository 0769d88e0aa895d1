// SPDX-License-Identifier: GPL-2.0
/*
 * The experiment: two profiles as arms, and which unit is in which.
 *
 * Only what nothing is bound to takes part. An arm follows from the hash of the
 * unit alone, see arm.h.
 */
#include <linux/atomic.h>
#include <linux/cgroup.h>
#include <linux/cleanup.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "../sense/arm.h"
#include "control.h"

#define UNIT_BITS	16
#define MAX_PROBES	32	/* for a place in the set of units */

enum arm { CONTROL, TREATMENT, ARMS };

/**
 * struct units - which units have been seen
 * @nr: by arm
 * @full: there was no room for one
 * @seen: hashes, the last bit is the arm; 0 for a free place
 */
struct units {
	atomic_t nr[ARMS];
	bool full;
	atomic64_t seen[BIT(UNIT_BITS)];
};

/**
 * struct experiment - what it is, published as a whole while it runs
 * @rcu: frees it after the last reader
 * @arm: the profiles, or %NULL
 * @seed: of the assignment
 * @cgroup: only processes at or below it take part; 0 for all
 * @level: of that cgroup in the hierarchy
 * @percent: of the units are treated
 * @by_cgroup: units are cgroups, not processes
 * @units: what has been seen
 */
struct experiment {
	struct rcu_head rcu;
	struct mmp_profile *arm[ARMS];
	u64 seed;
	u64 cgroup;
	int level;
	u32 percent;
	bool by_cgroup;
	struct units *units;
};

#define DEFAULTS	{ .percent = 50 }

static struct experiment setup = DEFAULTS;	/* under mmp_lock */
static struct experiment __rcu *running;

static struct experiment *run(void)
{
	return rcu_dereference_protected(running, lockdep_is_held(&mmp_lock));
}

/* Assignment */

static bool takes_part(const struct experiment *e, struct cgroup *cgroup)
{
	if (!e->cgroup)
		return true;
	cgroup = cgroup_ancestor(cgroup, e->level);
	return cgroup && cgroup_id(cgroup) == e->cgroup;
}

static u64 hash_of(const struct experiment *e, const struct task_struct *task,
		   struct cgroup *cgroup)
{
	if (e->by_cgroup)
		return mmp_unit_hash(e->seed, cgroup_id(cgroup), 0);
	return mmp_unit_hash(e->seed, task->tgid,
			     READ_ONCE(task->group_leader)->start_boottime);
}

/* Notes a unit in the set, once. Usually one look finds that it is there. */
static void see(struct units *units, u64 hash, enum arm arm)
{
	u64 mark = (hash << 2) | 2 | arm;
	unsigned int i;

	for (i = 0; i < MAX_PROBES; i++) {
		atomic64_t *place = &units->seen[(hash + i) % BIT(UNIT_BITS)];
		u64 is = atomic64_read(place);

		if (!is)
			is = atomic64_cmpxchg(place, 0, mark);
		if (!is)
			atomic_inc(&units->nr[arm]);
		if (!is || is == mark)
			return;
	}
	if (!READ_ONCE(units->full))
		WRITE_ONCE(units->full, true);
}

/**
 * mmp_experiment_arm - the profile of a task that nothing is bound to
 * @task: which
 *
 * Context: RCU read side.
 * Return: its arm, or "default" if it takes no part.
 */
struct mmp_profile *mmp_experiment_arm(struct task_struct *task)
{
	const struct experiment *e = rcu_dereference(running);
	struct cgroup *cgroup = task_dfl_cgroup(task);
	enum arm arm;
	u64 hash;

	if (!e || !takes_part(e, cgroup))
		return &mmp_default;
	hash = hash_of(e, task, cgroup);
	arm = mmp_is_treated(hash, e->percent) ? TREATMENT : CONTROL;
	see(e->units, hash, arm);
	return e->arm[arm];
}

/* Changes */

bool mmp_experiment_running(void)
{
	return rcu_access_pointer(running);
}

/**
 * mmp_experiment_uses - is a profile an arm?
 * @profile: which
 *
 * Context: under mmp_lock.
 */
bool mmp_experiment_uses(const struct mmp_profile *profile)
{
	return setup.arm[CONTROL] == profile || setup.arm[TREATMENT] == profile;
}

/* Units that have been seen stay to be read until the next start. */
static void stop(void)
{
	struct experiment *old = run();

	if (!old)
		return;
	RCU_INIT_POINTER(running, NULL);
	mmp_binding_settle();
	mmp_latency_stop();
	kfree_rcu(old, rcu);
}

static int publish(void)
{
	struct experiment *new = kmemdup(&setup, sizeof(setup), GFP_KERNEL);
	struct experiment *old = run();

	if (!new)
		return -ENOMEM;
	rcu_assign_pointer(running, new);
	if (old)
		kfree_rcu(old, rcu);
	return 0;
}

static void replace_units(struct units *new)
{
	struct units *old = setup.units;

	setup.units = new;
	if (old) {
		synchronize_rcu();
		kvfree(old);
	}
}

static int start(void)
{
	struct units *units;
	int err;

	if (run())
		return 0;
	if (!setup.arm[CONTROL] || !setup.arm[TREATMENT])
		return -EINVAL;
	units = kvzalloc(sizeof(*units), GFP_KERNEL);
	if (!units)
		return -ENOMEM;
	replace_units(units);
	err = mmp_latency_start();
	if (err)
		return err;
	err = publish();
	if (err)
		mmp_latency_stop();
	else
		mmp_binding_settle();
	return err;
}

/**
 * mmp_experiment_clear - stop the experiment and forget all about it
 *
 * Context: under mmp_lock; may sleep.
 */
void mmp_experiment_clear(void)
{
	stop();
	replace_units(NULL);
	setup = (struct experiment)DEFAULTS;
}

/**
 * mmp_experiment_units - write how many units each arm has had
 * @m: where to
 */
void mmp_experiment_units(struct seq_file *m)
{
	static const struct units none;
	const struct units *units;

	guard(mutex)(&mmp_lock);
	units = setup.units ?: &none;
	seq_printf(m, "control %d\n", atomic_read(&units->nr[CONTROL]));
	seq_printf(m, "treatment %d\n", atomic_read(&units->nr[TREATMENT]));
	seq_printf(m, "full %d\n", READ_ONCE(units->full));
}

/* Its files */

static int may_set_up(void)
{
	int err = mmp_may_change(NULL);

	return err ?: run() ? -EBUSY : 0;
}

static ssize_t arm_show(enum arm arm, char *buf)
{
	guard(mutex)(&mmp_lock);
	return sysfs_emit(buf, "%s\n",
			  setup.arm[arm] ? setup.arm[arm]->name : "none");
}

static int set_arm(enum arm arm, const char *name)
{
	struct mmp_profile *profile = NULL;

	if (*name != '\n' && !sysfs_streq(name, "none")) {
		profile = mmp_profile_find(name);
		if (!profile)
			return -ENOENT;
		if (profile == &mmp_default || profile == setup.arm[!arm])
			return -EINVAL;
	}
	setup.arm[arm] = profile;
	return 0;
}

static ssize_t arm_store(enum arm arm, const char *buf, size_t count)
{
	int err;

	guard(mutex)(&mmp_lock);
	err = may_set_up() ?: set_arm(arm, buf);
	return err ?: count;
}

#define ARM_FILE(name, arm)						\
static ssize_t name##_show(struct kobject *kobj,			\
			   struct kobj_attribute *attr, char *buf)	\
{									\
	return arm_show(arm, buf);					\
}									\
									\
static ssize_t name##_store(struct kobject *kobj,			\
			    struct kobj_attribute *attr,		\
			    const char *buf, size_t count)		\
{									\
	return arm_store(arm, buf, count);				\
}									\
									\
static struct kobj_attribute name##_attr = __ATTR_RW(name)

ARM_FILE(control, CONTROL);
ARM_FILE(treatment, TREATMENT);

static ssize_t unit_show(struct kobject *kobj, struct kobj_attribute *attr,
			 char *buf)
{
	guard(mutex)(&mmp_lock);
	return sysfs_emit(buf, "%s\n", setup.by_cgroup ? "process [cgroup]" :
							 "[process] cgroup");
}

static ssize_t unit_store(struct kobject *kobj, struct kobj_attribute *attr,
			  const char *buf, size_t count)
{
	bool by_cgroup = sysfs_streq(buf, "cgroup");
	int err;

	if (!by_cgroup && !sysfs_streq(buf, "process"))
		return -EINVAL;
	guard(mutex)(&mmp_lock);
	err = may_set_up();
	if (!err)
		setup.by_cgroup = by_cgroup;
	return err ?: count;
}

static struct kobj_attribute unit_attr = __ATTR_RW(unit);

/**
 * struct number - a file with a number
 * @attr: the file
 * @max: what it may be at most
 * @get: what it is; under mmp_lock
 * @set: change it; under mmp_lock
 */
struct number {
	struct kobj_attribute attr;
	u64 max;
	u64 (*get)(void);
	int (*set)(u64 value);
};

static u64 get_percent(void)
{
	return setup.percent;
}

/* Also while it runs. */
static int set_percent(u64 value)
{
	u32 was = setup.percent;
	int err;

	setup.percent = value;
	err = run() ? publish() : 0;
	if (err)
		setup.percent = was;
	return err;
}

static u64 get_seed(void)
{
	return setup.seed;
}

static int set_seed(u64 value)
{
	if (run())
		return -EBUSY;
	setup.seed = value;
	return 0;
}

static u64 get_cgroup(void)
{
	return setup.cgroup;
}

static int set_cgroup(u64 value)
{
	struct cgroup *cgroup;

	if (run())
		return -EBUSY;
	if (value) {
		cgroup = cgroup_get_from_id(value);
		if (IS_ERR(cgroup))
			return -ENOENT;
		setup.level = cgroup->level;
		cgroup_put(cgroup);
	}
	setup.cgroup = value;
	return 0;
}

static u64 get_enabled(void)
{
	return mmp_experiment_running();
}

static int set_enabled(u64 value)
{
	if (value)
		return start();
	stop();
	return 0;
}

static ssize_t number_show(struct kobject *kobj, struct kobj_attribute *attr,
			   char *buf)
{
	const struct number *n = container_of(attr, struct number, attr);

	guard(mutex)(&mmp_lock);
	return sysfs_emit(buf, "%llu\n", n->get());
}

static ssize_t number_store(struct kobject *kobj, struct kobj_attribute *attr,
			    const char *buf, size_t count)
{
	const struct number *n = container_of(attr, struct number, attr);
	u64 value;
	int err = mmp_parse(buf, count, 0, n->max, &value);

	if (err)
		return err;
	guard(mutex)(&mmp_lock);
	err = mmp_may_change(NULL) ?: n->set(value);
	return err ?: count;
}

#define NUMBER_FILE(name, highest)					\
static struct number name##_number = {					\
	.attr = __ATTR(name, 0644, number_show, number_store),		\
	.max = (highest), .get = get_##name, .set = set_##name,		\
}

NUMBER_FILE(percent, 100);
NUMBER_FILE(seed, U64_MAX);
NUMBER_FILE(cgroup, U64_MAX);
NUMBER_FILE(enabled, 1);

const struct attribute *const mmp_experiment_files[] = {
	&control_attr.attr,
	&treatment_attr.attr,
	&unit_attr.attr,
	&percent_number.attr.attr,
	&seed_number.attr.attr,
	&cgroup_number.attr.attr,
	&enabled_number.attr.attr,
	NULL
};
