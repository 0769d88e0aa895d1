// SPDX-License-Identifier: GPL-2.0
/*
 * Bindings: a binding assigns a cgroup or a process to a profile.
 *
 * A cgroup is identified by its id, a process by its struct pid. The binding
 * holds a reference to the struct pid, so neither identifier can be reused.
 * Tracepoints report when a cgroup or a process ends, and when a bound process
 * forks.
 */
#include <linux/cgroup.h>
#include <linux/cleanup.h>
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/tracepoint.h>
#include <linux/workqueue.h>
#include <trace/events/cgroup.h>
#include <trace/events/sched.h>

#include "../sense/events.h"
#include "control.h"

enum { CGROUPS, PROCESSES, KINDS };

static unsigned int nr_bound[KINDS];	/* under mmp_bindings_lock */
/* true while this file holds a count in the static key mmp_scoped */
static bool scoped;

static unsigned int *binding_count_of(const struct mmp_binding *b)
{
	return &nr_bound[b->pid ? PROCESSES : CGROUPS];
}

static void binding_insert(struct mmp_binding *b)
{
	unsigned int *nr = binding_count_of(b);

	lockdep_assert_held(&mmp_bindings_lock);
	hash_add_rcu(mmp_bindings, &b->node, b->id);
	atomic_inc(&b->profile->users);
	WRITE_ONCE(*nr, *nr + 1);
}

static void binding_free(struct rcu_head *rcu)
{
	struct mmp_binding *b = container_of(rcu, struct mmp_binding, rcu);

	put_pid(b->pid);
	kfree(b);
}

static void binding_remove(struct mmp_binding *b)
{
	unsigned int *nr = binding_count_of(b);

	lockdep_assert_held(&mmp_bindings_lock);
	hash_del_rcu(&b->node);
	atomic_dec(&b->profile->users);
	WRITE_ONCE(*nr, *nr - 1);
	call_rcu(&b->rcu, binding_free);
}

/*
 * Moves a binding to another profile. A concurrent fault uses either the
 * old or the new profile.
 */
static void binding_move(struct mmp_binding *b, struct mmp_profile *profile)
{
	lockdep_assert_held(&mmp_bindings_lock);
	atomic_dec(&b->profile->users);
	atomic_inc(&profile->users);
	WRITE_ONCE(b->profile, profile);
}

/*
 * Returns a new binding, not in the hash table yet, of the process @pid, or of the cgroup @id if
 * @pid is NULL. Returns NULL if memory is short.
 */
static struct mmp_binding *binding_new(u64 id, struct pid *pid, gfp_t gfp)
{
	struct mmp_binding *b = kmalloc(sizeof(*b), gfp);

	if (b)
		*b = (struct mmp_binding){ .id = id, .pid = get_pid(pid) };
	return b;
}

/* Tracepoint handlers */

static void binding_settle_later(struct work_struct *work)
{
	guard(mutex)(&mmp_lock);
	mmp_bindings_settle();
}

static DECLARE_WORK(settling, binding_settle_later);

/*
 * Removes the binding of a process or cgroup that has ended. A process that has
 * ended takes no more faults, so CPUs may keep its profile cached.
 */
static void binding_ended(u64 id)
{
	const unsigned int *nr = NULL;
	struct mmp_binding *b;

	spin_lock(&mmp_bindings_lock);
	b = mmp_binding_find(id);
	if (b) {
		nr = binding_count_of(b);
		binding_remove(b);
	}
	spin_unlock(&mmp_bindings_lock);
	if (nr && !READ_ONCE(*nr))
		schedule_work(&settling);
}

static void binding_on_exit(void *unused, MMP_EXIT_ARGS)
{
	u64 id = mmp_process_id(task_tgid(task));

	guard(rcu)();
	if (!atomic_read(&task->signal->live) && mmp_binding_find(id))
		binding_ended(id);
}

static void binding_on_rmdir(void *unused, struct cgroup *cgroup, const char *path)
{
	binding_ended(cgroup_id(cgroup));
}

/*
 * Binds the child of a bound process to the parent's profile. The child does
 * not run yet, so no CPU has cached its profile. If the allocation fails, the
 * child is not bound, and the binding of its cgroup applies. The binding is
 * charged to the cgroup of the parent; if that is at its limit, the binding is
 * allocated without a charge, because the child would be unbound otherwise.
 */
static void binding_on_fork(void *unused, struct task_struct *parent,
			    struct task_struct *child)
{
	u64 from = mmp_process_id(task_tgid(parent));
	struct pid *pid = task_tgid(child);
	struct mmp_binding *b, *of_parent;

	guard(rcu)();
	if (mmp_process_id(pid) == from || !mmp_binding_find(from))
		return;
	b = binding_new(mmp_process_id(pid), pid, GFP_NOWAIT | __GFP_NOWARN | __GFP_ACCOUNT) ?:
	    binding_new(mmp_process_id(pid), pid, GFP_NOWAIT | __GFP_NOWARN);
	if (!b)
		return;
	spin_lock(&mmp_bindings_lock);
	of_parent = mmp_binding_find(from);
	if (of_parent) {
		b->profile = of_parent->profile;
		binding_insert(b);
	}
	spin_unlock(&mmp_bindings_lock);
	if (!of_parent)
		binding_free(&b->rcu);
}

static struct mmp_event events[] = {
	{ "sched_process_fork", binding_on_fork },
	{ "sched_process_exit", binding_on_exit },
	{ "cgroup_rmdir", binding_on_rmdir },
	{}
};

/**
 * mmp_bindings_settle - detach tracepoints and disable lookups that no binding needs any longer
 *
 * Context: under mmp_lock; may sleep.
 */
void mmp_bindings_settle(void)
{
	bool processes = READ_ONCE(nr_bound[PROCESSES]);
	bool any = processes || READ_ONCE(nr_bound[CGROUPS]);

	lockdep_assert_held(&mmp_lock);
	if (!any)
		mmp_ignore(events);
	if (processes)
		static_branch_enable(&mmp_processes_bound);
	else
		static_branch_disable(&mmp_processes_bound);
	if (!any && scoped)
		mmp_scope_end();
	scoped = any && scoped;
}

/* Changes */

static int binding_listen(void)
{
	int err = mmp_listen(events);

	if (err || scoped)
		return err;
	err = mmp_scope_begin();
	scoped = !err;
	return err;
}

/*
 * Binds the process @pid, or the cgroup @id, to @profile; moves the binding if there is one. The
 * caller then checks that the process or cgroup still exists, because one that ended before would
 * stay bound.
 */
static int binding_put(struct mmp_profile *profile, u64 id, struct pid *pid)
{
	struct mmp_binding *new = binding_new(id, pid, GFP_KERNEL), *old;
	int err;

	if (!new)
		return -ENOMEM;
	new->profile = profile;
	err = binding_listen();
	if (err)
		goto free;
	spin_lock(&mmp_bindings_lock);
	old = mmp_binding_find(id);
	if (old)
		binding_move(old, profile);
	else
		binding_insert(new);
	mmp_whose_outdate(!pid);
	spin_unlock(&mmp_bindings_lock);
	if (!old)
		return 0;
free:
	binding_free(&new->rcu);
	return err;
}

/**
 * mmp_bind_cgroup - bind a cgroup and its descendants to a profile
 * @profile: the profile
 * @id: id of the cgroup
 *
 * Context: under mmp_lock; may sleep. The caller calls mmp_bindings_settle()
 * before it drops the lock, also after an error.
 * Return: 0, or an error that docs/sysfs-abi.txt lists for "cgroups".
 */
int mmp_bind_cgroup(struct mmp_profile *profile, u64 id)
{
	struct cgroup *cgroup = cgroup_get_from_id(id);
	int err;

	if (IS_ERR(cgroup))
		return -ENOENT;
	err = binding_put(profile, id, NULL);
	if (!err && !(READ_ONCE(cgroup->self.flags) & CSS_ONLINE)) {
		binding_ended(id);
		err = -ENOENT;
	}
	cgroup_put(cgroup);
	return err;
}

/**
 * mmp_bind_process - bind a process and its later children to a profile
 * @profile: the profile
 * @number: PID in the namespace of the caller
 *
 * Context: under mmp_lock; may sleep. The caller calls mmp_bindings_settle()
 * before it drops the lock, also after an error.
 * Return: 0, or an error that docs/sysfs-abi.txt lists for "pids".
 */
int mmp_bind_process(struct mmp_profile *profile, u64 number)
{
	struct pid *pid = number <= INT_MAX ? find_get_pid(number) : NULL;
	struct task_struct *task = get_pid_task(pid, PIDTYPE_TGID);
	int err = -ESRCH;

	if (!task)
		goto put;
	err = task->flags & PF_KTHREAD ? -EINVAL :
	      binding_put(profile, mmp_process_id(pid), pid);
	if (!err && !atomic_read(&task->signal->live)) {
		binding_ended(mmp_process_id(pid));
		err = -ESRCH;
	}
	put_task_struct(task);
put:
	put_pid(pid);
	return err;
}

static int binding_drop(const struct mmp_profile *profile, u64 id)
{
	struct mmp_binding *b;

	spin_lock(&mmp_bindings_lock);
	b = mmp_binding_find(id);
	if (b && b->profile != profile)
		b = NULL;
	if (b) {
		binding_remove(b);
		mmp_whose_outdate(!b->pid);
	}
	spin_unlock(&mmp_bindings_lock);
	return b ? 0 : -ENOENT;
}

/**
 * mmp_unbind_cgroup - end the binding of a cgroup
 * @profile: the profile that the cgroup must be bound to
 * @id: id of the cgroup
 *
 * Context: under mmp_lock. The caller calls mmp_bindings_settle() before it
 * drops the lock, also after an error.
 * Return: 0, or -ENOENT if the cgroup is not bound to @profile.
 */
int mmp_unbind_cgroup(const struct mmp_profile *profile, u64 id)
{
	return binding_drop(profile, id);
}

/**
 * mmp_unbind_process - end the binding of a process
 * @profile: the profile that the process must be bound to
 * @number: PID in the namespace of the caller
 *
 * Context: under mmp_lock. The caller calls mmp_bindings_settle() before it
 * drops the lock, also after an error.
 * Return: 0, or -ENOENT if the process is not bound to @profile.
 */
int mmp_unbind_process(const struct mmp_profile *profile, u64 number)
{
	struct pid *pid = number <= INT_MAX ? find_get_pid(number) : NULL;
	int err = pid ? binding_drop(profile, mmp_process_id(pid)) : -ENOENT;

	put_pid(pid);
	return err;
}

/**
 * mmp_unbind_all - drop all bindings of cgroups and processes to profiles
 *
 * Context: under mmp_lock; may sleep.
 */
void mmp_unbind_all(void)
{
	struct mmp_binding *b;
	struct hlist_node *next;
	int i;

	scoped_guard(spinlock, &mmp_bindings_lock) {
		hash_for_each_safe(mmp_bindings, i, next, b, node)
			binding_remove(b);
		mmp_whose_outdate(true);
	}
	mmp_bindings_settle();
}

/**
 * mmp_bindings_init - allocate the hash table of bindings
 *
 * Return: 0 or -ENOMEM.
 */
int mmp_bindings_init(void)
{
	check_trace_callback_type_sched_process_fork(binding_on_fork);
	check_trace_callback_type_sched_process_exit(binding_on_exit);
	check_trace_callback_type_cgroup_rmdir(binding_on_rmdir);
	return mmp_whose_init();
}

/*
 * Frees all bindings at unload, when no sysfs file of the module is left and no callback for the
 * kernel's hooks runs.
 */
void mmp_bindings_exit(void)
{
	scoped_guard(mutex, &mmp_lock)
		mmp_unbind_all();
	tracepoint_synchronize_unregister();
	cancel_work_sync(&settling);
	rcu_barrier();
	mmp_whose_exit();
}
