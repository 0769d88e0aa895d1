/* SPDX-License-Identifier: GPL-2.0 */
/* Whose profile decides for a fault. */
#ifndef MMPOLICY_WHOSE_H
#define MMPOLICY_WHOSE_H

#include <linux/cleanup.h>
#include <linux/hashtable.h>
#include <linux/jump_label.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/spinlock.h>

#include "profile.h"

/* May a profile other than "default" decide? Counted: bindings, the experiment. */
DECLARE_STATIC_KEY_FALSE(mmp_scoped);

/**
 * struct mmp_latest - the profile that a CPU found for the task it was last asked about
 * @task: mmp_task_number() of that task
 * @epoch: &mmp_epoch from before the profile was looked up
 * @profile: that profile
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

/* Is what this CPU has kept that of current, working on @mm, and still valid? */
static __always_inline bool mmp_is_kept(struct mmp_latest __percpu *latest,
					const struct mm_struct *mm)
{
	/* Pairs with mmp_whose_outdate(). */
	unsigned long now = smp_load_acquire(&mmp_epoch);

	return likely(__this_cpu_read(latest->task) == mmp_task_number(mm) &&
		      __this_cpu_read(latest->epoch) == now);
}

/* Is *@profile, what this CPU has kept, the profile of @mm? */
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

/* What follows is for control/, the only one to change it. */

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

/* With 10,000 bound processes, a bucket has some three, and a fault looks at one bucket. */
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
