/* SPDX-License-Identifier: GPL-2.0 */
/* Finds the profile that decides for a fault. */
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

/*
 * On while a profile other than "default" may decide. Counts bindings and the
 * running experiment.
 */
DECLARE_STATIC_KEY_FALSE(mmp_scoped);

/**
 * struct mmp_latest - profile that a CPU has cached for its last task
 * @task: mmp_task_number() of the task
 * @epoch: &mmp_epoch from before the profile was looked up
 * @profile: the profile
 */
struct mmp_latest {
	u64 task;
	unsigned long epoch;
	struct mmp_profile *profile;
};

DECLARE_PER_CPU(struct mmp_latest, mmp_latest);
/*
 * Incremented by each change that may give a task another profile, or a profile
 * other settings. Cached profiles of an older epoch are invalid.
 */
extern unsigned long mmp_epoch;

struct mmp_profile *mmp_profile_look(const struct mm_struct *mm);
bool mmp_keep(struct mmp_latest __percpu *latest, const struct mm_struct *mm,
	      unsigned long epoch, struct mmp_profile *profile);

/*
 * Returns the cache key of (current, @mm). It includes the start time of the
 * task, since the address of an mm_struct can be reused. Two tasks with equal
 * keys are not expected; they would share a profile until the next lookup.
 */
static __always_inline u64 mmp_task_number(const struct mm_struct *mm)
{
	return (unsigned long)mm ^ current->start_boottime;
}

/*
 * Returns true if the profile cached by this CPU is valid for current, working
 * on @mm.
 */
static __always_inline bool mmp_is_kept(struct mmp_latest __percpu *latest,
					const struct mm_struct *mm)
{
	/* Pairs with mmp_whose_outdate(). */
	unsigned long now = smp_load_acquire(&mmp_epoch);

	return likely(__this_cpu_read(latest->task) == mmp_task_number(mm) &&
		      __this_cpu_read(latest->epoch) == now);
}

/*
 * Sets *@profile to the profile cached by this CPU. Returns true if it is valid
 * for @mm.
 */
static __always_inline bool mmp_profile_kept(const struct mm_struct *mm,
					     struct mmp_profile **profile)
{
	guard(preempt)();
	*profile = __this_cpu_read(mmp_latest.profile);
	return mmp_is_kept(&mmp_latest, mm);
}

/*
 * Implements mmp_profile_of() while a profile other than "default" may decide.
 */
static __always_inline struct mmp_profile *mmp_profile_scoped(const struct mm_struct *mm)
{
	struct mmp_profile *profile;

	return mmp_profile_kept(mm, &profile) ? profile : mmp_profile_look(mm);
}

/**
 * mmp_profile_of - find the profile that decides for an address space
 * @mm: the address space; %NULL, without an owner, gets "default"
 *
 * The first of: the binding of the process; the binding of its cgroup or of the nearest
 * ancestor that is bound; its arm of the running experiment; "default".
 * Context: RCU read side, until whose end the profile stays valid. Task context only: an
 *	interrupt during a lookup would read a cache entry that is half written.
 * Return: the profile.
 */
static inline struct mmp_profile *mmp_profile_of(const struct mm_struct *mm)
{
	if (static_branch_unlikely(&mmp_scoped))
		return mmp_profile_scoped(mm);
	return &mmp_default;
}

/* Only control/, which manages bindings, uses the rest of this file. */

/**
 * struct mmp_binding - binds a cgroup or a process to a profile
 * @node: link in the hash table mmp_bindings
 * @rcu: frees the structure after its last reader
 * @id: id of the cgroup, or the address of @pid
 * @pid: the process; %NULL for a cgroup
 * @profile: the profile
 */
struct mmp_binding {
	struct hlist_node node;
	struct rcu_head rcu;
	u64 id;
	struct pid *pid;
	struct mmp_profile *profile;
};

/*
 * log2 of the hash buckets. With 10,000 bound processes a bucket has about
 * three entries, and a fault searches one bucket.
 */
#define MMP_BINDINGS_BITS	12

extern DECLARE_HASHTABLE(mmp_bindings, MMP_BINDINGS_BITS);
extern spinlock_t mmp_bindings_lock;	/* held to change bindings; readers use RCU */
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
