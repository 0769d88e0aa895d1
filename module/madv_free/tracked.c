// SPDX-License-Identifier: GPL-2.0
/*
 * Tracks the processes whose lazily freed pages lazyfree.c counts, and their
 * cgroups.
 */
#include <linux/cleanup.h>
#include <linux/hashtable.h>
#include <linux/memcontrol.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "../sense/whose.h"
#include "lazyfree.h"
#include "pages.h"
#include "recount.h"

#define TIDY_INTERVAL	(HZ / 4)
#define RETRY_INTERVAL	(HZ / 50)
/*
 * Most page tables (each maps 2 MB) and holes that the worker ("keeper") examines
 * in new processes in one pass. Each process counts as one more.
 */
#define NEW_TABLES	256U

static DEFINE_HASHTABLE(all_tracked, 10);
static LIST_HEAD(all_unknown);
static LIST_HEAD(all_known);			/* protected by keeping */
static DEFINE_SPINLOCK(all_tracked_lock);	/* protects all_tracked and all_unknown */
static DEFINE_MUTEX(keeping);		/* held to walk all_tracked, and to remove from it */

/*
 * Three tables indexed by mmp_memcg_slot(), the number of a cgroup: lazily
 * freed pages of its processes; whether a call was refused there lately; and
 * whether the worker is recounting its processes because of such a refusal.
 *
 * The CPU time of the worker is charged to no cgroup, and a tenant decides how
 * many pages there are to count. So a pass of the worker examines at most
 * MMP_KEEPER_TABLES page tables, and the next pass continues there. Calls also
 * recount areas, at their own cost, until the worker has finished.
 */
static atomic_long_t *sums;
static DECLARE_BITMAP(refused, MMP_TRACKED_GROUPS);
static DECLARE_BITMAP(recounted, MMP_TRACKED_GROUPS);	/* protected by keeping */

/*
 * Worker ("keeper") that counts processes, follows them between cgroups, and
 * removes those that have exited. It never waits for a process, which may hold
 * its mmap_lock for any time, and a reset waits for this worker. So it only
 * tries the lock, and mmput_async() frees the memory of an exiting process. The
 * timer is not deferrable, as the worker frees memory.
 */
static void tracked_keep(struct work_struct *work);
static DECLARE_DELAYED_WORK(keeper, tracked_keep);
static unsigned long tidied;	/* jiffies at the last tracked_tidy_all() */

/*
 * Returns true if a task has left madvise(): it has exited, or it sleeps
 * interruptibly, which a task inside madvise() never does.
 */
static bool tracked_call_ended(u32 pid)
{
	struct task_struct *task = pid_task(find_pid_ns(pid, &init_pid_ns), PIDTYPE_PID);

	return !task || (READ_ONCE(task->__state) & TASK_INTERRUPTIBLE);
}

/*
 * Counts the lazily freed pages of an area. Drops the lock of the counts to do so, as other tasks
 * of the process need the lock.
 */
static unsigned long tracked_lazy(struct mmp_lazy *lazy, unsigned long start)
{
	struct tracked *t = container_of(lazy, struct tracked, lazy);
	unsigned long pages;

	spin_unlock(&t->lock);
	pages = mmp_pages_lazy(lazy->mm, start, start + MMP_AREA_SIZE);
	spin_lock(&t->lock);
	return pages;
}

static const struct mmp_lazy_ops tracked_ops = {
	.pages = mmp_pages_mapped,
	.lazy = tracked_lazy,
	.ended = tracked_call_ended,
};

static struct tracked *tracked_find(const struct mm_struct *mm)
{
	struct tracked *t;

	hash_for_each_possible_rcu(all_tracked, t, node, (unsigned long)mm)
		if (t->lazy.mm == mm)
			return t;
	return NULL;
}

/*
 * Charges the lazily freed pages of process @t to its current cgroup, if it has moved to another
 * one.
 */
static void tracked_regroup(struct tracked *t)
{
	struct mem_cgroup *memcg = get_mem_cgroup_from_mm(t->lazy.mm);
	atomic_long_t *sum = &sums[mmp_memcg_slot(memcg)];

	mem_cgroup_put(memcg);
	if (t->lazy.group == sum)
		return;
	spin_lock(&t->lock);
	mmp_lazy_move(&t->lazy, sum);
	spin_unlock(&t->lock);
}

static void tracked_free(struct tracked *t)
{
	spin_lock(&t->lock);
	mmp_lazy_move(&t->lazy, NULL);
	spin_unlock(&t->lock);
	mmdrop(t->lazy.mm);
	kfree_rcu(t, rcu);
}

static void tracked_forget(struct tracked *t)
{
	spin_lock(&all_tracked_lock);
	hash_del_rcu(&t->node);
	list_del(&t->listed);
	spin_unlock(&all_tracked_lock);
	tracked_free(t);
}

static struct tracked *tracked_new(struct mm_struct *mm)
{
	struct tracked *t = NULL;

	static_assert(sizeof(*t) <= 32 * 1024);
	if (sums)
		t = kzalloc(sizeof(*t), GFP_NOWAIT | __GFP_NOWARN | __GFP_ACCOUNT);
	if (!t)
		return NULL;
	spin_lock_init(&t->lock);
	t->lazy.ops = &tracked_ops;
	t->lazy.mm = mm;
	mmgrab(mm);
	tracked_regroup(t);
	return t;
}

/*
 * Returns the counts of lazily freed pages of @mm. If there are none yet, allocates them, charged
 * to the process; returns NULL if memory is short.
 */
static struct tracked *tracked_get(struct mm_struct *mm)
{
	struct tracked *t = tracked_find(mm), *new;

	if (t)
		return t;
	new = tracked_new(mm);
	if (!new)
		return NULL;
	spin_lock(&all_tracked_lock);
	t = tracked_find(mm);
	if (!t) {
		hash_add_rcu(all_tracked, &new->node, (unsigned long)mm);
		list_add_tail(&new->listed, &all_unknown);
	}
	spin_unlock(&all_tracked_lock);
	if (t)
		tracked_free(new);
	else
		mod_delayed_work(mmp_unbound_wq, &keeper, 0);
	return t ?: new;
}

/*
 * Counts the lazily freed pages of processes that were not counted yet, in at most NEW_TABLES page
 * tables. Returns true if such a process is left.
 */
static bool tracked_count_unknown(void)
{
	unsigned int tables = NEW_TABLES;
	LIST_HEAD(later);
	struct tracked *t;
	bool left;

	spin_lock(&all_tracked_lock);
	while (tables && (t = list_first_entry_or_null(&all_unknown, struct tracked, listed))) {
		list_move_tail(&t->listed, &later);
		spin_unlock(&all_tracked_lock);
		tables--;	/* also if another task holds its mmap_lock */
		mmp_recount_new(t, &tables);
		spin_lock(&all_tracked_lock);
		if (t->known)
			list_move_tail(&t->listed, &all_known);
	}
	list_splice_tail(&later, &all_unknown);
	left = !list_empty(&all_unknown);
	spin_unlock(&all_tracked_lock);
	return left;
}

/*
 * Starts a recount of the lazily freed pages in cgroups whose limit has refused an MADV_FREE call,
 * unless such a recount is under way.
 */
static void tracked_begin_recount(void)
{
	unsigned long group;
	struct tracked *t;

	if (!bitmap_empty(recounted, MMP_TRACKED_GROUPS) ||
	    bitmap_empty(refused, MMP_TRACKED_GROUPS))
		return;
	for_each_set_bit(group, refused, MMP_TRACKED_GROUPS) {
		clear_bit(group, refused);
		__set_bit(group, recounted);
	}
	list_for_each_entry(t, &all_known, listed)
		t->recounted_to = 0;
}

/* Returns true if the current recount has not finished process @t. */
static bool tracked_is_recounted(const struct tracked *t)
{
	return t->recounted_to < MMP_LAZY_AREAS && test_bit(t->lazy.group - sums, recounted);
}

/*
 * Recounts lazily freed pages in the cgroups whose limit has refused a call. Moves processes that
 * are not finished to the end of the list, so the next pass begins with the others.
 */
static void tracked_recount(void)
{
	unsigned int tables = MMP_KEEPER_TABLES;
	struct tracked *t, *next;
	LIST_HEAD(later);
	bool all = true;

	lockdep_assert_held(&keeping);
	tracked_begin_recount();
	list_for_each_entry_safe(t, next, &all_known, listed) {
		if (!tracked_is_recounted(t))
			continue;
		if (!tables) {
			all = false;
			break;
		}
		tables--;	/* also if another task holds its mmap_lock */
		t->recounted_to = mmp_recount(t, t->recounted_to, &tables);
		if (tracked_is_recounted(t)) {
			all = false;
			list_move_tail(&t->listed, &later);
		}
	}
	list_splice_tail(&later, &all_known);
	if (all)
		bitmap_zero(recounted, MMP_TRACKED_GROUPS);
}

/*
 * Follows processes between cgroups, and forgets those that have exited. Runs once per
 * TIDY_INTERVAL only, as it walks through all tracked processes.
 */
static void tracked_tidy_all(void)
{
	struct hlist_node *next;
	struct tracked *t;
	int i;

	hash_for_each_safe(all_tracked, i, next, t, node) {
		if (READ_ONCE(t->stale) || !atomic_read(&t->lazy.mm->mm_users))
			tracked_forget(t);
		else
			tracked_regroup(t);
	}
	tracked_recount();
	tidied = jiffies;
}

static void tracked_keep(struct work_struct *work)
{
	bool retry;

	guard(mutex)(&keeping);
	retry = tracked_count_unknown();
	if (time_after_eq(jiffies, tidied + TIDY_INTERVAL))
		tracked_tidy_all();
	if (!hash_empty(all_tracked))
		queue_delayed_work(mmp_unbound_wq, &keeper,
				   retry ? RETRY_INTERVAL : TIDY_INTERVAL);
}

/**
 * mmp_tracked_leave - mark the counts of a process as stale, because the kernel
 * frees a range lazily that is not counted
 * @mm: the address space, whose counts are invalid from now on
 *
 * Context: RCU read side.
 */
void mmp_tracked_leave(const struct mm_struct *mm)
{
	struct tracked *t = tracked_find(mm);

	if (t && !READ_ONCE(t->stale))
		WRITE_ONCE(t->stale, true);
}

/**
 * mmp_tracked_switched - start tracking processes, or stop and free all state
 * @on: true to start
 * @scratch: %MMP_TRACKED_SCRATCH bytes of zeroes, in use until tracking stops;
 *	with %NULL, all answers are %MMP_ANSWER_UNKNOWN
 *
 * Context: as for &mmp_point.switched; no madvise() call runs in this point.
 * Waits for the worker, but for no other task.
 */
void mmp_tracked_switched(bool on, void *scratch)
{
	struct hlist_node *next;
	struct tracked *t;
	int i;

	mmp_recount_stop(!on);
	if (on) {
		bitmap_zero(refused, MMP_TRACKED_GROUPS);
		bitmap_zero(recounted, MMP_TRACKED_GROUPS);
		sums = scratch;
		tidied = jiffies;
		return;
	}
	synchronize_rcu();
	cancel_delayed_work_sync(&keeper);
	guard(mutex)(&keeping);
	hash_for_each_safe(all_tracked, i, next, t, node)
		tracked_forget(t);
	sums = NULL;
}

/**
 * mmp_tracked_lazy_pages - upper bound of lazily freed pages of a profile
 * @profile: counts the tracked processes of this profile
 *
 * Context: may sleep.
 * Return: the number of pages.
 */
u64 mmp_tracked_lazy_pages(const struct mmp_profile *profile)
{
	struct tracked *t;
	u64 pages = 0;
	bool ours;
	int i;

	guard(mutex)(&keeping);
	hash_for_each(all_tracked, i, t, node) {
		unsigned int tables = MMP_LAZY_AREAS;

		scoped_guard(rcu)
			ours = mmp_profile_of(t->lazy.mm) == profile;
		if (!ours)
			continue;
		mmp_recount(t, 0, &tables);
		pages += READ_ONCE(t->lazy.pages);
	}
	return pages;
}

static enum mmp_lazy_answer tracked_ask(struct tracked *t,
					const struct mmp_lazy_call *call,
					struct mmp_lazy_limit limit)
{
	struct mmp_lazy_count count;
	enum mmp_lazy_answer answer;

	mmp_lazy_count(&t->lazy, call, limit.pages, &count);
	spin_lock(&t->lock);
	answer = mmp_lazy_ask(&t->lazy, call, &count, limit);
	if (!t->lazy.group)	/* tracking of this process has just ended */
		answer = MMP_ANSWER_UNKNOWN;
	if (answer == MMP_ANSWER_LIMIT && limit.shared)
		set_bit(t->lazy.group - sums, refused);
	spin_unlock(&t->lock);
	return answer;
}

/*
 * Returns true if the limit can be checked for this process. That needs a count
 * of the pages that were lazily freed before tracking began. Without that
 * count, a process is below the limit if all its anonymous pages are, as lazily
 * freed pages are anonymous.
 */
static bool tracked_may_ask(struct tracked *t, struct mmp_lazy_limit limit)
{
	/*
	 * Pairs with the store in recount_some_new(): if @known is true, the counts that are read
	 * afterwards are complete.
	 */
	return smp_load_acquire(&t->known) ||
	       (!limit.shared && mmp_anon_pages_within(t->lazy.mm, limit.pages));
}

/**
 * mmp_tracked_ask - decide whether a range is freed lazily
 * @vma: an anonymous VMA
 * @start: start of the range
 * @end: end of the range
 * @limit: the most pages that the process or its group may have lazily freed
 *
 * Context: as for &mm_policy_ops.madv_free_eager.
 * Return: MMP_ANSWER_LAZY, or the reason to free the range at once.
 */
enum mmp_lazy_answer mmp_tracked_ask(struct vm_area_struct *vma, unsigned long start,
				     unsigned long end, struct mmp_lazy_limit limit)
{
	const struct mmp_lazy_call call = { start, end, current->pid };
	struct tracked *t = tracked_get(vma->vm_mm);

	if (!t || READ_ONCE(t->stale) || !tracked_may_ask(t, limit))
		return MMP_ANSWER_UNKNOWN;
	return tracked_ask(t, &call, limit);
}
