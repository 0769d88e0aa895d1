// SPDX-License-Identifier: GPL-2.0
/*
 * The address spaces of which lazyfree.c keeps the sums: getting to know them
 * and forgetting them, and the cgroups that they are in.
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

#define TIDY_INTERVAL	(HZ / 4)
#define RETRY_INTERVAL	(HZ / 50)

/* Page tables that are looked at before others get the locks. */
#define TABLES_AT_ONCE	16

/**
 * struct tracked - an address space that we know
 * @node: in @all_tracked
 * @rcu: frees it after the last reader
 * @lock: held for what is done with @lazy
 * @known: has been counted, so we know what was lazily freed before
 * @stale: others than us have freed lazily since
 * @counted_to: up to which address it was counted
 * @lazy: what is lazily freed
 *
 * Made by the first call, then moved and removed by @keeper; mm_struct is kept,
 * its memory not.
 */
struct tracked {
	struct hlist_node node;
	struct rcu_head rcu;
	spinlock_t lock;	/* of lazy */
	bool known;
	bool stale;
	unsigned long counted_to;
	struct mmp_lazy lazy;
};

static DEFINE_HASHTABLE(all_tracked, 8);
static DEFINE_SPINLOCK(all_tracked_lock);	/* for each change */
static DEFINE_MUTEX(keeping);		/* who looks at all, and removes */

/*
 * By mmp_memcg_slot(): what the processes in a cgroup have lazily freed, and
 * whether a call was refused there since they were counted anew.
 */
static atomic_long_t *sums;
static DECLARE_BITMAP(refused, MMP_TRACKED_GROUPS);

/*
 * It never waits for a process: that may hold its mmap_lock for as long as it
 * likes, and whoever goes back to stock waits for the keeper. So the lock is
 * tried, and the memory of a process that ends meanwhile freed by others. Not
 * deferrable, as it gives back what it keeps of processes that are gone.
 */
static void tracked_keep(struct work_struct *work);
static DECLARE_DELAYED_WORK(keeper, tracked_keep);
static bool stopping;
static unsigned long tidied;	/* in jiffies */

/*
 * A task that waits for an event, or is no more, is not in madvise(), which
 * waits for nothing but locks.
 */
static bool tracked_call_ended(u32 pid)
{
	struct task_struct *task = pid_task(find_pid_ns(pid, &init_pid_ns), PIDTYPE_PID);

	return !task || (READ_ONCE(task->__state) & TASK_INTERRUPTIBLE);
}

static const struct mmp_lazy_ops tracked_ops = {
	.pages = mmp_pages_mapped,
	.lazy = mmp_pages_lazy,
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

/* Counts @t where its process is now. Pages that it took along count there. */
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
	spin_unlock(&all_tracked_lock);
	tracked_free(t);
}

static struct tracked *tracked_new(struct mm_struct *mm)
{
	struct tracked *t = NULL;

	static_assert(sizeof(*t) <= 32 * 1024);
	if (sums)
		t = kzalloc(sizeof(*t), GFP_NOWAIT | __GFP_NOWARN);
	if (!t)
		return NULL;
	spin_lock_init(&t->lock);
	t->lazy.ops = &tracked_ops;
	t->lazy.mm = mm;
	mmgrab(mm);
	tracked_regroup(t);
	return t;
}

/* What we know of @mm; NULL without memory for it. */
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
	if (!t)
		hash_add_rcu(all_tracked, &new->node, (unsigned long)mm);
	spin_unlock(&all_tracked_lock);
	if (t)
		tracked_free(new);
	else
		mod_delayed_work(mmp_unbound_wq, &keeper, 0);
	return t ?: new;
}

/* Counts what was lazily freed in some areas more; under mmap_lock. */
static void tracked_count_some(struct tracked *t)
{
	struct mm_struct *mm = t->lazy.mm;
	unsigned long next, pages;
	struct vm_area_struct *vma;
	int i;

	for (i = 0; i < TABLES_AT_ONCE; i++, t->counted_to = next) {
		vma = find_vma(mm, t->counted_to);
		if (!vma) {
			/* After all that was counted. */
			smp_store_release(&t->known, true);
			return;
		}
		t->counted_to = max(t->counted_to, vma->vm_start);
		next = vma->vm_end;
		guard(rcu)();
		pages = mmp_pages_lazy_at(vma, t->counted_to, &next);
		spin_lock(&t->lock);
		mmp_lazy_found(&t->lazy, t->counted_to, pages);
		spin_unlock(&t->lock);
	}
}

/* Counts what was lazily freed, as far as the lock is to be had. */
static void tracked_count(struct tracked *t)
{
	struct mm_struct *mm = t->lazy.mm;

	if (!mmget_not_zero(mm))
		return;
	while (!t->known && !READ_ONCE(stopping) && mmap_read_trylock(mm)) {
		tracked_count_some(t);
		mmap_read_unlock(mm);
		cond_resched();
	}
	mmput_async(mm);
}

/* Counts some areas anew, from the @i-th on; under mmap_lock. */
static unsigned int tracked_look_at_some(struct tracked *t, unsigned int i)
{
	unsigned int left = TABLES_AT_ONCE;

	guard(rcu)();
	spin_lock(&t->lock);
	for (; left && i < MMP_LAZY_AREAS; i++) {
		if (t->lazy.areas[i]) {
			mmp_lazy_look_at(&t->lazy, i);
			left--;
		}
	}
	spin_unlock(&t->lock);
	return i;
}

/* Counts all areas anew, as far as the lock is to be had. */
static void tracked_look_at_all(struct tracked *t)
{
	struct mm_struct *mm = t->lazy.mm;
	unsigned int i = 0;

	if (!mmget_not_zero(mm))
		return;
	while (i < MMP_LAZY_AREAS && !READ_ONCE(stopping) && mmap_read_trylock(mm)) {
		i = tracked_look_at_some(t, i);
		mmap_read_unlock(mm);
		cond_resched();
	}
	mmput_async(mm);
}

/* Follows processes between cgroups, and counts anew where a call was refused. */
static void tracked_tidy(struct tracked *t)
{
	tracked_regroup(t);
	if (test_bit(t->lazy.group - sums, refused))
		tracked_look_at_all(t);
}

static void tracked_keep(struct work_struct *work)
{
	bool tidy = time_after_eq(jiffies, tidied + TIDY_INTERVAL), retry = false;
	struct hlist_node *next;
	struct tracked *t;
	int i;

	guard(mutex)(&keeping);
	hash_for_each_safe(all_tracked, i, next, t, node) {
		if (READ_ONCE(t->stale) || !atomic_read(&t->lazy.mm->mm_users)) {
			tracked_forget(t);
			continue;
		}
		if (!t->known)
			tracked_count(t);
		if (tidy)
			tracked_tidy(t);
		retry |= !t->known;
	}
	if (tidy) {
		bitmap_zero(refused, MMP_TRACKED_GROUPS);
		tidied = jiffies;
	}
	if (!hash_empty(all_tracked))
		queue_delayed_work(mmp_unbound_wq, &keeper,
				   retry ? RETRY_INTERVAL : TIDY_INTERVAL);
}

/**
 * mmp_tracked_leave - a range is freed lazily without us
 * @mm: of which address space, which is not known any more
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
 * mmp_tracked_switched - begin to get to know address spaces, or forget all
 * @on: begin?
 * @room: %MMP_TRACKED_ROOM bytes of zeroes until it ends; with %NULL, all answers
 *	are %MMP_ANSWER_UNKNOWN
 *
 * Context: as &mmp_point.switched; nobody is asked at this point before or after.
 * Waits for the keeper, but not for what others do.
 */
void mmp_tracked_switched(bool on, void *room)
{
	struct hlist_node *next;
	struct tracked *t;
	int i;

	WRITE_ONCE(stopping, !on);
	if (on) {
		sums = room;
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
 * mmp_tracked_lazy_pages - how many pages are lazily freed now, at most
 * @profile: in the processes that this one decides for, as far as they are known
 *
 * Context: may sleep.
 */
u64 mmp_tracked_lazy_pages(const struct mmp_profile *profile)
{
	struct tracked *t;
	u64 pages = 0;
	bool ours;
	int i;

	guard(mutex)(&keeping);
	hash_for_each(all_tracked, i, t, node) {
		scoped_guard(rcu)
			ours = mmp_profile_of(t->lazy.mm) == profile;
		if (!ours)
			continue;
		tracked_look_at_all(t);
		pages += READ_ONCE(t->lazy.pages);
	}
	return pages;
}

static enum mmp_lazy_answer tracked_ask(struct tracked *t,
					const struct mmp_lazy_call *call,
					struct mmp_lazy_limit limit)
{
	unsigned long pages = mmp_lazy_pages(&t->lazy, call, limit.pages);
	enum mmp_lazy_answer answer = MMP_ANSWER_UNKNOWN;

	spin_lock(&t->lock);
	if (t->lazy.group)	/* else it has just been forgotten */
		answer = mmp_lazy_ask(&t->lazy, call, pages, limit);
	if (answer == MMP_ANSWER_LIMIT && limit.shared)
		set_bit(t->lazy.group - sums, refused);
	spin_unlock(&t->lock);
	return answer;
}

/*
 * What is lazily freed is part of the anonymous memory. So where there is no
 * more of that, no more is lazily freed, whatever we know.
 */
static bool tracked_may_ask(struct tracked *t, struct mmp_lazy_limit limit)
{
	/* Before what was counted is read, see tracked_count_some(). */
	return smp_load_acquire(&t->known) ||
	       (!limit.shared && mmp_anon_pages_within(t->lazy.mm, limit.pages));
}

/**
 * mmp_tracked_ask - may a range be freed lazily?
 * @vma: anonymous
 * @start: of the range
 * @end: of the range
 * @limit: what to hold to
 *
 * Context: as for &mm_policy_ops.madv_free_eager.
 * Return: lazily, or why not.
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
