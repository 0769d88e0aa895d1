// SPDX-License-Identifier: GPL-2.0
/*
 * Whose profile decides for a fault.
 *
 * A fault does not walk the hierarchy of cgroups. Each CPU keeps what it found
 * for a cgroup, tagged with a generation that rises with every change, so that
 * one store outdates the caches of all CPUs.
 */
#include <linux/cgroup.h>
#include <linux/cleanup.h>
#include <linux/pid.h>
#include <linux/sched/signal.h>

#include "arm.h"
#include "whose.h"

/**
 * struct found - the profile found for a cgroup
 * @cgroup: its id, which no other one will ever have
 * @generation: of the table when it was looked up
 * @profile: of it or of the nearest one above that has one, or %NULL
 */
struct found {
	u64 cgroup;
	unsigned long generation;
	struct mmp_profile *profile;
} __aligned(4 * sizeof(long));

#define CACHE_SIZE	512

struct mmp_profile mmp_default = {
	.name = "default",
	.dirs = LIST_HEAD_INIT(mmp_default.dirs),
};

DEFINE_STATIC_KEY_FALSE(mmp_scoped);
DEFINE_STATIC_KEY_FALSE(mmp_processes_bound);
DEFINE_STATIC_KEY_FALSE(mmp_measuring);

DEFINE_HASHTABLE(mmp_bindings, MMP_BINDINGS_BITS);
DEFINE_SPINLOCK(mmp_bindings_lock);
static unsigned long generation = 1;	/* rises after a change of a cgroup */
static struct found __percpu *cache;

/**
 * mmp_binding_find - what is bound?
 * @id: of a cgroup, or mmp_process_id()
 *
 * Context: RCU read side, or under mmp_bindings_lock.
 */
struct mmp_binding *mmp_binding_find(u64 id)
{
	struct mmp_binding *b;

	hash_for_each_possible_rcu(mmp_bindings, b, node, id,
				   lockdep_is_held(&mmp_bindings_lock))
		if (b->id == id)
			return b;
	return NULL;
}

static struct mmp_profile *whose_bound(u64 id)
{
	const struct mmp_binding *b = mmp_binding_find(id);

	return b ? READ_ONCE(b->profile) : NULL;
}

static noinline struct mmp_profile *whose_nearest(struct cgroup *cgroup)
{
	struct mmp_profile *profile = NULL;

	for (; cgroup && !profile; cgroup = cgroup_parent(cgroup))
		profile = whose_bound(cgroup_id(cgroup));
	return profile;
}

/* The generation is read first, so that what is found is never older than it. */
static __always_inline struct mmp_profile *
whose_cgroup(const struct task_struct *task)
{
	/* Pairs with mmp_bindings_outdate(). */
	unsigned long now = smp_load_acquire(&generation);
	struct cgroup *cgroup = task_dfl_cgroup((struct task_struct *)task);
	u64 id = cgroup_id(cgroup);
	struct found *found;

	guard(preempt)();
	found = this_cpu_ptr(cache) + id % CACHE_SIZE;
	if (unlikely(found->cgroup != id || found->generation != now))
		*found = (struct found){ id, now, whose_nearest(cgroup) };
	return found->profile;
}

static __always_inline struct mmp_profile *whose_task(struct task_struct *task)
{
	struct mmp_profile *profile = NULL;

	if (static_branch_unlikely(&mmp_processes_bound))
		profile = whose_bound(mmp_process_id(task_tgid(task)));
	if (!profile)
		profile = whose_cgroup(task);
	if (!profile)
		profile = mmp_arm_of(task);
	return profile ?: &mmp_default;
}

/* Not of the task that works on it: khugepaged, ptrace, kernel threads. */
static noinline struct mmp_profile *whose_mm(const struct mm_struct *mm)
{
	struct task_struct *owner = mm ? mmp_mm_owner(mm) : NULL;

	return owner ? whose_task(owner) : &mmp_default;
}

/* mmp_profile_of() when it may be another than "default". */
struct mmp_profile *mmp_profile_scoped(const struct mm_struct *mm)
{
	if (likely(current->mm == mm && !(current->flags & PF_KTHREAD)))
		return whose_task(current);
	return whose_mm(mm);
}

/**
 * mmp_bindings_outdate - what CPUs have kept holds no more
 *
 * Context: under mmp_bindings_lock, after a change for a cgroup.
 */
void mmp_bindings_outdate(void)
{
	lockdep_assert_held(&mmp_bindings_lock);
	/* Pairs with whose_cgroup(). */
	smp_store_release(&generation, generation + 1);
}

/* Return: 0 or -ENOMEM. */
int mmp_whose_init(void)
{
	cache = __alloc_percpu(CACHE_SIZE * sizeof(*cache), sizeof(*cache));
	return cache ? 0 : -ENOMEM;
}

void mmp_whose_exit(void)
{
	free_percpu(cache);
}
