/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Whose profile decides for a fault, and where that is counted. All that a point
 * needs to know of profiles; control/ changes what is found here.
 */
#ifndef MMPOLICY_WHOSE_H
#define MMPOLICY_WHOSE_H

#include <linux/atomic.h>
#include <linux/cleanup.h>
#include <linux/hashtable.h>
#include <linux/jump_label.h>
#include <linux/list.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/spinlock.h>

#include "../mmpolicy.h"

#define MMP_NAME_SIZE	32	/* of the name of a profile, with the NUL */

struct dentry;

/**
 * struct mmp_settings - what a profile says, published as a whole
 * @rcu: frees it after the last reader
 * @active: the policy of each point
 * @shadow: the policy that is asked there too, and not obeyed
 * @values: of all knobs, by slot
 */
struct mmp_settings {
	struct rcu_head rcu;
	const struct mmp_policy *active[MM_POLICY_POINTS];
	const struct mmp_policy *shadow[MM_POLICY_POINTS];
	u32 values[];
};

/**
 * struct mmp_stats - what a file with counters shows
 * @profile: whose
 * @point: of which point
 */
struct mmp_stats {
	struct mmp_profile *profile;
	enum mm_policy_point point;
};

/**
 * struct mmp_profile - a name for settings
 * @name: as in sysfs and debugfs
 * @node: in the list of all; afterwards in that of those to be removed
 * @users: bindings and arms of the experiment that name it
 * @gone: not to be written to: its files are not all there yet, or it is deleted;
 *	under mmp_lock
 * @dirs: its sysfs directories, parents first
 * @debugfs: its debugfs directory
 * @stats: what the files there show
 * @settings: immutable; replaced as a whole
 * @nodes: of each point, its node_size for each node
 * @counters: of all points, by index; then how long faults took
 */
struct mmp_profile {
	char name[MMP_NAME_SIZE];
	struct list_head node;
	atomic_t users;
	bool gone;
	struct list_head dirs;
	struct dentry *debugfs;
	struct mmp_stats stats[MM_POLICY_POINTS];
	struct mmp_settings __rcu *settings;
	void *nodes[MM_POLICY_POINTS];
	u64 __percpu *counters;
};

extern struct mmp_profile mmp_default;

/* May a profile other than "default" decide? Counted: bindings, the experiment. */
DECLARE_STATIC_KEY_FALSE(mmp_scoped);
/* Count the cost of decisions, in ticks of get_cycles()? */
DECLARE_STATIC_KEY_FALSE(mmp_measuring);
/* Is there more to a decision than its answer? Counted: shadows, and mmp_looked_at. */
DECLARE_STATIC_KEY_FALSE(mmp_watched);
/* Is every decision looked at? Counted: their cost, traces. */
DECLARE_STATIC_KEY_FALSE(mmp_looked_at);
void mmp_look_at(bool on);

/**
 * struct mmp_latest - the profile that a CPU found for the task it was last asked about
 * @task: mmp_task_number() of it
 * @epoch: when it was looked up
 * @profile: what it was
 */
struct mmp_latest {
	u64 task;
	unsigned long epoch;
	struct mmp_profile *profile;
};

DECLARE_PER_CPU(struct mmp_latest, mmp_latest);
/* Rises with all that may give a task another profile, or a profile other settings. */
extern unsigned long mmp_epoch;

struct mmp_profile *mmp_profile_look(const struct mm_struct *mm);
bool mmp_keep(struct mmp_latest __percpu *latest, const struct mm_struct *mm,
	      unsigned long epoch, struct mmp_profile *profile);

/*
 * Current, working on @mm, in one number: with its birth, as a later task may have its
 * address space's place. Two with the same number are not to be expected; they would
 * share a profile until a CPU looks anew.
 */
static __always_inline u64 mmp_task_number(const struct mm_struct *mm)
{
	return (unsigned long)mm ^ current->start_boottime;
}

/* Is what a CPU has kept of this task, working on @mm, and does it still hold? */
static __always_inline bool mmp_is_kept(struct mmp_latest __percpu *latest,
					const struct mm_struct *mm)
{
	/* Pairs with mmp_whose_outdate(). */
	unsigned long now = smp_load_acquire(&mmp_epoch);

	return likely(__this_cpu_read(latest->task) == mmp_task_number(mm) &&
		      __this_cpu_read(latest->epoch) == now);
}

/* Has this CPU kept the profile of @mm? */
static __always_inline bool mmp_profile_kept(const struct mm_struct *mm,
					     struct mmp_profile **profile)
{
	guard(preempt)();
	*profile = __this_cpu_read(mmp_latest.profile);
	return mmp_is_kept(&mmp_latest, mm);
}

/* mmp_profile_of() when it may be another than "default". */
static __always_inline struct mmp_profile *mmp_profile_scoped(const struct mm_struct *mm)
{
	struct mmp_profile *profile;

	return mmp_profile_kept(mm, &profile) ? profile : mmp_profile_look(mm);
}

/**
 * mmp_profile_of - which profile decides for an address space
 * @mm: the address space; %NULL has none of its own and gets "default"
 *
 * The profile that the process is bound to, else its cgroup or the nearest one
 * above that is bound, else its arm of the running experiment, else "default".
 * Context: RCU read side; the profile stays until its end. A task, no interrupt:
 * one in the middle of a lookup would find what a CPU keeps half written.
 */
static inline struct mmp_profile *mmp_profile_of(const struct mm_struct *mm)
{
	if (static_branch_unlikely(&mmp_scoped))
		return mmp_profile_scoped(mm);
	return &mmp_default;
}

/* The counters of a point. */
static inline u64 __percpu *mmp_counters(const struct mmp_profile *profile,
					 const struct mmp_point *point)
{
	return profile->counters + point->first_counter;
}

#define MMP_STOCK	0	/* counter of points that count what no policy decides */

/**
 * mmp_count - add to a counter of a point
 * @profile: who decided
 * @point: the point
 * @counter: index into its counters
 * @n: how much
 */
static inline void mmp_count(const struct mmp_profile *profile,
			     const struct mmp_point *point,
			     unsigned int counter, u64 n)
{
	this_cpu_add(mmp_counters(profile, point)[counter], n);
}

/* The rest is for control/, which alone changes it. */

/**
 * struct mmp_binding - a cgroup or a process that has a profile
 * @node: in the table
 * @rcu: frees it after the last reader
 * @id: of the cgroup, or the address of @pid
 * @pid: of the process; %NULL for a cgroup
 * @profile: which
 */
struct mmp_binding {
	struct hlist_node node;
	struct rcu_head rcu;
	u64 id;
	struct pid *pid;
	struct mmp_profile *profile;
};

/* Of 10,000 processes some three are in one place; every fault of each looks there. */
#define MMP_BINDINGS_BITS	12

extern DECLARE_HASHTABLE(mmp_bindings, MMP_BINDINGS_BITS);
extern spinlock_t mmp_bindings_lock;	/* for changes; readers have RCU */
DECLARE_STATIC_KEY_FALSE(mmp_processes_bound);

static inline u64 mmp_process_id(const struct pid *pid)
{
	return (unsigned long)pid;
}

struct mmp_binding *mmp_binding_find(u64 id);
void mmp_whose_outdate(bool cgroups);
void mmp_whose_outdate_tasks(void);
int mmp_scope_begin(void);
void mmp_scope_end(void);
int mmp_whose_init(void);
void mmp_whose_exit(void);

#endif /* MMPOLICY_WHOSE_H */
