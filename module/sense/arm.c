// SPDX-License-Identifier: GPL-2.0
/*
 * Assigns units (processes or cgroups) to the arms of the running experiment
 * (A/B test), and counts the units that had a fault.
 */
#include <linux/cgroup.h>
#include <linux/sched/signal.h>

#include "arm.h"

#define MAX_PROBES	32	/* most slots of the set of units that are tried for one unit */

struct mmp_experiment __rcu *mmp_running;

static bool arm_takes_part(const struct mmp_experiment *e, struct cgroup *cgroup)
{
	if (!e->cgroup)
		return true;
	cgroup = cgroup_ancestor(cgroup, e->level);
	return cgroup && cgroup_id(cgroup) == e->cgroup;
}

static u64 arm_hash_of(const struct mmp_experiment *e, const struct task_struct *task,
		       struct cgroup *cgroup)
{
	if (e->by_cgroup)
		return mmp_unit_hash(e->seed, cgroup_id(cgroup), 0);
	return mmp_unit_hash(e->seed, task->tgid,
			     READ_ONCE(task->group_leader)->start_boottime);
}

/*
 * Adds a unit (a process or a cgroup) to the set of units that had a fault,
 * unless the set has it already. Usually the first slot read shows that.
 */
static void arm_note_unit(struct mmp_units *units, u64 hash, enum mmp_arm arm)
{
	u64 mark = (hash << 2) | 2 | arm;
	unsigned int i;

	for (i = 0; i < MAX_PROBES; i++) {
		atomic64_t *place = &units->seen[(hash + i) % BIT(MMP_UNIT_BITS)];
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
 * mmp_arm_of - find the profile of a task without a binding
 * @task: the task
 *
 * Context: RCU read side.
 * Return: the profile of its arm, or %NULL if it takes no part in an
 * experiment.
 */
struct mmp_profile *mmp_arm_of(struct task_struct *task)
{
	const struct mmp_experiment *e = rcu_dereference(mmp_running);
	struct cgroup *cgroup = task_dfl_cgroup(task);
	enum mmp_arm arm;
	u64 hash;

	if (!e || !arm_takes_part(e, cgroup))
		return NULL;
	hash = arm_hash_of(e, task, cgroup);
	arm = mmp_is_treated(hash, e->percent) ? MMP_TREATMENT : MMP_CONTROL;
	arm_note_unit(e->units, hash, arm);
	return e->arm[arm];
}
