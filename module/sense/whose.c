// SPDX-License-Identifier: GPL-2.0
/*
 * Finds the profile that decides for a fault.
 *
 * A fault does not walk the hierarchy of cgroups. Each CPU caches the profile
 * of a cgroup, tagged with a generation number. Every change increments the
 * generation, so one store invalidates the caches of all CPUs. A CPU also
 * caches the profile of the task that faulted last, from a binding or from an
 * arm of the experiment. A tracepoint reports tasks that move to another
 * cgroup.
 */
#include <linux/cgroup.h>
#include <linux/cleanup.h>
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <trace/events/cgroup.h>

#include "arm.h"
#include "events.h"
#include "whose.h"

/**
 * struct cached_profile - cached profile of a cgroup
 * @cgroup: id of the cgroup, which is never reused
 * @generation: &generation before the lookup
 * @profile: profile of the cgroup or of its nearest ancestor with a binding, or %NULL
 */
struct cached_profile {
	u64 cgroup;
	unsigned long generation;
	struct mmp_profile *profile;
} __aligned(4 * sizeof(long));

#define CACHE_SIZE	512

DEFINE_STATIC_KEY_FALSE(mmp_scoped);
DEFINE_STATIC_KEY_FALSE(mmp_processes_bound);

DEFINE_HASHTABLE(mmp_bindings, MMP_BINDINGS_BITS);
DEFINE_SPINLOCK(mmp_bindings_lock);
static unsigned long generation = 1;	/* incremented when the binding of a cgroup changes */
unsigned long mmp_epoch = 1;		/* 0 marks the empty cache of a CPU */
DEFINE_PER_CPU(struct mmp_latest, mmp_latest);
static struct cached_profile __percpu *cache;

/**
 * mmp_binding_find - find the binding of a cgroup or a process
 * @id: id of the cgroup, or mmp_process_id()
 *
 * Context: RCU read side, or under mmp_bindings_lock.
 * Return: the binding, or %NULL.
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

/*
 * Finds the profile of a task's cgroup. Reads the generation first, so the
 * cached profile is never older than its generation.
 */
static __always_inline struct mmp_profile *
whose_cgroup(const struct task_struct *task)
{
	/* Pairs with mmp_whose_outdate(). */
	unsigned long now = smp_load_acquire(&generation);
	struct cgroup *cgroup = task_dfl_cgroup((struct task_struct *)task);
	u64 id = cgroup_id(cgroup);
	struct cached_profile *found;

	guard(preempt)();
	found = this_cpu_ptr(cache) + id % CACHE_SIZE;
	if (unlikely(found->cgroup != id || found->generation != now))
		*found = (struct cached_profile){ id, now, whose_nearest(cgroup) };
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

/*
 * Finds the profile of an @mm that is not the address space of current
 * (khugepaged, ptrace, kernel threads): the owner of @mm decides.
 */
static noinline struct mmp_profile *whose_mm(const struct mm_struct *mm)
{
	struct task_struct *owner = mm ? mmp_mm_owner(mm) : NULL;

	return owner ? whose_task(owner) : &mmp_default;
}

/**
 * mmp_keep - cache the profile of current on this CPU
 * @latest: the cache
 * @mm: address space that the task works on
 * @epoch: &mmp_epoch from before the profile was looked up
 * @profile: the profile
 *
 * Context: RCU read side.
 * Return: whether it was cached. A fault in @mm by another process is not cached, as the owner
 *	of @mm selects the profile.
 */
bool mmp_keep(struct mmp_latest __percpu *latest, const struct mm_struct *mm,
	      unsigned long epoch, struct mmp_profile *profile)
{
	if (current->mm != mm || current->flags & PF_KTHREAD)
		return false;
	guard(preempt)();
	*this_cpu_ptr(latest) = (struct mmp_latest){
		mmp_task_number(mm), epoch, profile
	};
	return true;
}

/**
 * mmp_profile_look - slow path of mmp_profile_of(), on a miss of the cache
 * @mm: the address space
 *
 * The epoch is read first, so the cached profile is never older than its epoch.
 *
 * Return: the profile.
 */
struct mmp_profile *mmp_profile_look(const struct mm_struct *mm)
{
	/* Pairs with mmp_whose_outdate(). */
	unsigned long now = smp_load_acquire(&mmp_epoch);
	struct mmp_profile *profile;

	if (current->mm != mm || current->flags & PF_KTHREAD)
		return whose_mm(mm);
	profile = whose_task(current);
	mmp_keep(&mmp_latest, mm, now, profile);
	return profile;
}

/**
 * mmp_whose_outdate - invalidate the cached profiles of tasks on all CPUs
 * @cgroups: true to invalidate the cached profiles of cgroups, too
 *
 * Context: under mmp_bindings_lock, after a change of the bindings.
 */
void mmp_whose_outdate(bool cgroups)
{
	lockdep_assert_held(&mmp_bindings_lock);
	if (cgroups) {
		/* Pairs with whose_cgroup(). */
		smp_store_release(&generation, generation + 1);
	}
	/*
	 * Pairs with the acquires in mmp_is_kept(), mmp_profile_look() and
	 * provider/fault.c.
	 */
	smp_store_release(&mmp_epoch, mmp_epoch + 1);
}

/* Invalidates the cached profiles of tasks on all CPUs. */
void mmp_whose_outdate_tasks(void)
{
	spin_lock(&mmp_bindings_lock);
	mmp_whose_outdate(false);
	spin_unlock(&mmp_bindings_lock);
}

static void whose_on_move(void *unused, struct cgroup *to, const char *path,
			  struct task_struct *task, bool threadgroup)
{
	mmp_whose_outdate_tasks();
}

static struct mmp_event events[] = {
	{ "cgroup_attach_task", whose_on_move },
	{}
};

/**
 * mmp_scope_begin - let profiles other than "default" decide from now on
 *
 * Each successful call needs a call of mmp_scope_end().
 * Context: under mmp_lock; may sleep.
 * Return: 0, or an error of mmp_listen().
 */
int mmp_scope_begin(void)
{
	int err = mmp_listen(events);

	if (err)
		return err;
	mmp_whose_outdate_tasks();
	static_branch_inc(&mmp_scoped);
	return 0;
}

/*
 * Ends one mmp_scope_begin(); after the last one, only the profile "default" decides. Context:
 * under mmp_lock; may sleep.
 */
void mmp_scope_end(void)
{
	static_branch_dec(&mmp_scoped);
	if (!static_key_enabled(&mmp_scoped))
		mmp_ignore(events);
}

/* Allocates the cache of cgroup profiles. Returns 0 or -ENOMEM. */
int mmp_whose_init(void)
{
	check_trace_callback_type_cgroup_attach_task(whose_on_move);
	cache = __alloc_percpu(CACHE_SIZE * sizeof(*cache), sizeof(*cache));
	return cache ? 0 : -ENOMEM;
}

void mmp_whose_exit(void)
{
	free_percpu(cache);
}
