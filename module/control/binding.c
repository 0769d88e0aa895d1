// SPDX-License-Identifier: GPL-2.0
/*
 * Bindings: which cgroups and which processes have a profile of their own.
 *
 * A fault does not walk the hierarchy of cgroups. Each CPU keeps what it found
 * for a cgroup, tagged with a generation that rises with every change, so that
 * one store outdates the caches of all CPUs.
 *
 * A cgroup is known by its id, a process by its struct pid, on which a
 * reference is held. Neither is used again for another one. The kernel's
 * tracepoints tell when one of them ends, and when a bound process forks.
 */
#include <linux/cgroup.h>
#include <linux/cleanup.h>
#include <linux/ctype.h>
#include <linux/hashtable.h>
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/tracepoint.h>
#include <linux/workqueue.h>

#include "control.h"
#include "../sense/events.h"

enum kind { CGROUP, PROCESS, KINDS };

/**
 * struct binding - a cgroup or a process that has a profile
 * @node: in the table
 * @rcu: frees it after the last reader
 * @id: of the cgroup, or the address of @pid
 * @pid: of the process; %NULL for a cgroup
 * @profile: which
 */
struct binding {
	struct hlist_node node;
	struct rcu_head rcu;
	u64 id;
	struct pid *pid;
	struct mmp_profile *profile;
};

/**
 * struct found - the profile found for a cgroup
 * @cgroup: which; a removal raises the generation before it is freed
 * @generation: of the table when it was looked up
 * @profile: of it or of the nearest one above that has one, or %NULL
 */
struct found {
	const struct cgroup *cgroup;
	unsigned long generation;
	struct mmp_profile *profile;
} __aligned(4 * sizeof(long));

#define CACHE_SIZE	512
#define LONGEST_LINE	sizeof("18446744073709551615\n")

/* May a profile other than "default" decide? That of a process? */
DEFINE_STATIC_KEY_FALSE(mmp_scoped);
static DEFINE_STATIC_KEY_FALSE(processes_bound);

static DEFINE_HASHTABLE(table, 10);
static unsigned int nr_bound[KINDS];
static DEFINE_SPINLOCK(table_lock);	/* for the two above; readers have RCU */
static unsigned long generation = 1;	/* rises after a change of a cgroup */
static struct found __percpu *cache;

/* Lookup */

static u64 id_of(const struct pid *pid)
{
	return (unsigned long)pid;
}

static struct binding *find(u64 id)
{
	struct binding *b;

	hash_for_each_possible_rcu(table, b, node, id,
				   lockdep_is_held(&table_lock))
		if (b->id == id)
			return b;
	return NULL;
}

static struct mmp_profile *bound_to(u64 id)
{
	const struct binding *b = find(id);

	return b ? READ_ONCE(b->profile) : NULL;
}

static noinline struct mmp_profile *nearest(struct cgroup *cgroup)
{
	struct mmp_profile *profile = NULL;

	for (; cgroup && !profile; cgroup = cgroup_parent(cgroup))
		profile = bound_to(cgroup_id(cgroup));
	return profile;
}

/* The generation is read first, so that what is found is never older than it. */
static __always_inline struct mmp_profile *
of_cgroup(const struct task_struct *task)
{
	/* Pairs with outdate(). */
	unsigned long now = smp_load_acquire(&generation);
	struct cgroup *cgroup = task_dfl_cgroup((struct task_struct *)task);
	struct found *found;

	guard(preempt)();
	/* They are about a page large. */
	found = this_cpu_ptr(cache) + (unsigned long)cgroup / SZ_4K % CACHE_SIZE;
	if (unlikely(found->cgroup != cgroup || found->generation != now))
		*found = (struct found){ cgroup, now, nearest(cgroup) };
	return found->profile;
}

static __always_inline struct mmp_profile *of_task(struct task_struct *task)
{
	struct mmp_profile *profile = NULL;

	if (static_branch_unlikely(&processes_bound))
		profile = bound_to(id_of(task_tgid(task)));
	if (!profile)
		profile = of_cgroup(task);
	return profile ?: mmp_experiment_arm(task);
}

/* Not of the task that works on it: khugepaged, ptrace, kernel threads. */
static noinline struct mmp_profile *of_owner(const struct mm_struct *mm)
{
	struct task_struct *owner = mm ? mmp_mm_owner(mm) : NULL;

	return owner ? of_task(owner) : &mmp_default;
}

/* mmp_profile_of() when it may be another than "default". */
struct mmp_profile *mmp_profile_scoped(const struct mm_struct *mm)
{
	if (likely(current->mm == mm && !(current->flags & PF_KTHREAD)))
		return of_task(current);
	return of_owner(mm);
}

/* Changes */

static enum kind kind_of(const struct binding *b)
{
	return b->pid ? PROCESS : CGROUP;
}

/* After the table has changed, for cgroups. */
static void outdate(void)
{
	/* Pairs with of_cgroup(). */
	smp_store_release(&generation, generation + 1);
}

static void add(struct binding *b)
{
	lockdep_assert_held(&table_lock);
	hash_add_rcu(table, &b->node, b->id);
	WRITE_ONCE(nr_bound[kind_of(b)], nr_bound[kind_of(b)] + 1);
	if (!b->pid)
		outdate();
}

static void free_binding(struct rcu_head *rcu)
{
	struct binding *b = container_of(rcu, struct binding, rcu);

	put_pid(b->pid);
	kfree(b);
}

static void drop(struct binding *b)
{
	lockdep_assert_held(&table_lock);
	hash_del_rcu(&b->node);
	WRITE_ONCE(nr_bound[kind_of(b)], nr_bound[kind_of(b)] - 1);
	if (!b->pid)
		outdate();
	call_rcu(&b->rcu, free_binding);
}

static bool any_bound(void)
{
	return READ_ONCE(nr_bound[CGROUP]) || READ_ONCE(nr_bound[PROCESS]);
}

/* @pid is NULL for a cgroup. */
static struct binding *new_binding(u64 id, struct pid *pid, gfp_t gfp)
{
	struct binding *b = kmalloc(sizeof(*b), gfp);

	if (b)
		*b = (struct binding){ .id = id, .pid = get_pid(pid) };
	return b;
}

/* What the kernel tells */

static void settle(struct work_struct *work)
{
	guard(mutex)(&mmp_lock);
	mmp_binding_settle();
}

static DECLARE_WORK(settling, settle);

static void ended(enum kind kind, u64 id)
{
	struct binding *b;

	spin_lock(&table_lock);
	b = find(id);
	if (b)
		drop(b);
	spin_unlock(&table_lock);
	if (b && !READ_ONCE(nr_bound[kind]))
		schedule_work(&settling);
}

static void on_exit(void *unused, struct task_struct *task)
{
	u64 id = id_of(task_tgid(task));

	guard(rcu)();
	if (!atomic_read(&task->signal->live) && find(id))
		ended(PROCESS, id);
}

static void on_rmdir(void *unused, struct cgroup *cgroup, const char *path)
{
	ended(CGROUP, cgroup_id(cgroup));
	/* Soon another one may be at its address. */
	spin_lock(&table_lock);
	outdate();
	spin_unlock(&table_lock);
}

/* The child does not run yet. Without memory it is not bound: it gets stock. */
static void on_fork(void *unused, struct task_struct *parent,
		    struct task_struct *child)
{
	u64 from = id_of(task_tgid(parent));
	struct pid *pid = task_tgid(child);
	struct binding *b;

	guard(rcu)();
	if (id_of(pid) == from || !find(from))
		return;
	b = new_binding(id_of(pid), pid, GFP_ATOMIC | __GFP_NOWARN);
	if (!b)
		return;
	spin_lock(&table_lock);
	b->profile = bound_to(from);
	if (b->profile)
		add(b);
	spin_unlock(&table_lock);
	if (!b->profile)
		free_binding(&b->rcu);
}

static struct mmp_event events[] = {
	{ "sched_process_fork", on_fork },
	{ "sched_process_exit", on_exit },
	{ "cgroup_rmdir", on_rmdir },
	{}
};

static void switch_key(struct static_key_false *key, bool on)
{
	if (on)
		static_branch_enable(key);
	else
		static_branch_disable(key);
}

/**
 * mmp_binding_settle - listen and look up only as long as there is a need
 *
 * Context: under mmp_lock; may sleep.
 */
void mmp_binding_settle(void)
{
	lockdep_assert_held(&mmp_lock);
	if (!any_bound())
		mmp_ignore(events);
	switch_key(&processes_bound, READ_ONCE(nr_bound[PROCESS]));
	switch_key(&mmp_scoped, any_bound() || mmp_experiment_running());
}

/* Adds @new; or returns true if what is bound was moved instead. */
static bool move(struct mmp_profile *profile, u64 id, struct binding *new)
{
	struct binding *old;

	spin_lock(&table_lock);
	old = find(id);
	if (old) {
		WRITE_ONCE(old->profile, profile);
		if (!old->pid)
			outdate();
	} else {
		add(new);
	}
	spin_unlock(&table_lock);
	return old;
}

/* Binds, or moves the binding. Before the caller asks whether @id still lives. */
static int bind(struct mmp_profile *profile, u64 id, struct pid *pid)
{
	struct binding *new = new_binding(id, pid, GFP_KERNEL);
	int err;

	if (!new)
		return -ENOMEM;
	new->profile = profile;
	err = mmp_listen(events);
	if (!err && !move(profile, id, new))
		return 0;
	free_binding(&new->rcu);
	return err;
}

static int unbind(const struct mmp_profile *profile, u64 id)
{
	struct binding *b;

	spin_lock(&table_lock);
	b = find(id);
	if (b && b->profile != profile)
		b = NULL;
	if (b)
		drop(b);
	spin_unlock(&table_lock);
	return b ? 0 : -ENOENT;
}

/**
 * mmp_unbind_all - drop all bindings
 *
 * Context: under mmp_lock; may sleep.
 */
void mmp_unbind_all(void)
{
	struct hlist_node *next;
	struct binding *b;
	int i;

	scoped_guard(spinlock, &table_lock)
		hash_for_each_safe(table, i, next, b, node)
			drop(b);
	mmp_binding_settle();
}

/**
 * mmp_bound - is anything bound to a profile?
 * @profile: which
 */
bool mmp_bound(const struct mmp_profile *profile)
{
	bool found = false;
	struct binding *b;
	int i;

	spin_lock(&table_lock);
	hash_for_each(table, i, b, node)
		found |= b->profile == profile;
	spin_unlock(&table_lock);
	return found;
}

/* The files "cgroups" and "pids" of a profile */

static int bind_cgroup(struct mmp_profile *profile, u64 id)
{
	struct cgroup *cgroup = cgroup_get_from_id(id);
	int err;

	if (IS_ERR(cgroup))
		return -ENOENT;
	err = bind(profile, id, NULL);
	if (!err && !(READ_ONCE(cgroup->self.flags) & CSS_ONLINE)) {
		ended(CGROUP, id);
		err = -ENOENT;
	}
	cgroup_put(cgroup);
	return err;
}

static int bind_task(struct mmp_profile *profile, struct task_struct *task,
		     struct pid *pid)
{
	int err;

	if (task->flags & PF_KTHREAD)
		return -EINVAL;
	err = bind(profile, id_of(pid), pid);
	if (!err && !atomic_read(&task->signal->live)) {
		ended(PROCESS, id_of(pid));
		err = -ESRCH;
	}
	return err;
}

static int bind_pid(struct mmp_profile *profile, struct pid *pid)
{
	struct task_struct *task = get_pid_task(pid, PIDTYPE_TGID);
	int err;

	if (!task)
		return -ESRCH;
	err = bind_task(profile, task, pid);
	put_task_struct(task);
	return err;
}

static int change_process(struct mmp_profile *profile, u64 number, bool on)
{
	struct pid *pid = number <= INT_MAX ? find_get_pid(number) : NULL;
	int err;

	if (!pid)
		return on ? -ESRCH : -ENOENT;
	err = on ? bind_pid(profile, pid) : unbind(profile, id_of(pid));
	put_pid(pid);
	return err;
}

static int change_cgroup(struct mmp_profile *profile, u64 id, bool on)
{
	return on ? bind_cgroup(profile, id) : unbind(profile, id);
}

static ssize_t change(struct kobject *kobj, const char *buf, size_t count,
		      int (*change_one)(struct mmp_profile *profile, u64 id,
					bool on))
{
	struct mmp_profile *profile = mmp_profile_of_dir(kobj);
	bool off = *buf == '-';
	u64 id;
	int err;

	if (off && !isdigit(buf[1]))
		return -EINVAL;
	err = mmp_parse(buf + off, count, 0, U64_MAX, &id);
	if (err)
		return err;
	guard(mutex)(&mmp_lock);
	err = mmp_may_change(profile);
	if (err)
		return err;
	err = change_one(profile, id, !off);
	mmp_binding_settle();
	return err ?: count;
}

/* 0 where it is not to be shown: another kind, or not in the reader's namespace. */
static u64 shown(const struct binding *b, enum kind kind)
{
	if (kind_of(b) != kind)
		return 0;
	return kind == PROCESS ? pid_vnr(b->pid) : b->id;
}

/* From byte @skip on. Ends with a whole line, unless not even one fits. */
static ssize_t list(struct kobject *kobj, char *buf, loff_t skip, size_t size,
		    enum kind kind)
{
	const struct mmp_profile *profile = mmp_profile_of_dir(kobj);
	char line[LONGEST_LINE];
	struct binding *b;
	size_t len = 0, n;
	int i;

	guard(rcu)();
	hash_for_each_rcu(table, i, b, node) {
		u64 id = shown(b, kind);

		if (!id || READ_ONCE(b->profile) != profile)
			continue;
		n = scnprintf(line, sizeof(line), "%llu\n", id);
		if (skip >= n) {
			skip -= n;
			continue;
		}
		if (len && n > size - len)
			break;
		n = min(n - skip, size - len);
		memcpy(buf + len, line + skip, n);
		len += n;
		skip = 0;
	}
	return len;
}

#define BINDING_FILE(name, kind, one)					\
static ssize_t name##_read(struct file *file, struct kobject *kobj,	\
			   struct bin_attribute *attr, char *buf,	\
			   loff_t off, size_t count)			\
{									\
	return list(kobj, buf, off, count, kind);			\
}									\
									\
static ssize_t name##_write(struct file *file, struct kobject *kobj,	\
			    struct bin_attribute *attr, char *buf,	\
			    loff_t off, size_t count)			\
{									\
	return change(kobj, buf, count, one);				\
}									\
									\
static struct bin_attribute name##_file = __BIN_ATTR_RW(name, 0)

BINDING_FILE(cgroups, CGROUP, change_cgroup);
BINDING_FILE(pids, PROCESS, change_process);

/* Not text files of sysfs, as those end after a page. */
const struct bin_attribute *const mmp_binding_files[] = {
	&cgroups_file,
	&pids_file,
	NULL
};

/**
 * mmp_binding_init - get ready for bindings
 *
 * Return: 0 or -ENOMEM.
 */
int mmp_binding_init(void)
{
	cache = __alloc_percpu(CACHE_SIZE * sizeof(*cache), sizeof(*cache));
	return cache ? 0 : -ENOMEM;
}

/* No file is left and no callback runs. */
void mmp_binding_exit(void)
{
	scoped_guard(mutex, &mmp_lock)
		mmp_unbind_all();
	tracepoint_synchronize_unregister();
	cancel_work_sync(&settling);
	rcu_barrier();
	free_percpu(cache);
}
