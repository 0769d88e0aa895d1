// SPDX-License-Identifier: GPL-2.0
/*
 * The address spaces of which lazyfree.c keeps the sums: getting to know them
 * and forgetting them, and the cgroups that they are in.
 */
#include <linux/hashtable.h>
#include <linux/memcontrol.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "lazyfree.h"
#include "pages.h"

#define TIDY_INTERVAL	(HZ / 4)
#define GROUPS		(USHRT_MAX + 1)

/**
 * struct tracked - an address space that we know
 * @node: in @all_tracked
 * @rcu: frees it after the last reader
 * @lock: held for what is done with @lazy
 * @stale: others than us have freed lazily since
 * @lazy: what is lazily freed
 *
 * Made, moved and removed by @keeper; mm_struct is kept, its memory not.
 */
struct tracked {
	struct hlist_node node;
	struct rcu_head rcu;
	spinlock_t lock;	/* of lazy */
	bool stale;
	struct mmp_lazy lazy;
};

static DEFINE_HASHTABLE(all_tracked, 8);

/*
 * By mem_cgroup_id(): what the processes in a cgroup have lazily freed, and
 * whether a call was refused there since they were counted anew.
 */
static atomic_long_t *sums;
static DECLARE_BITMAP(refused, GROUPS);

/* An address space to get to know, with a reference. */
static struct mm_struct *wanted;

static void tracked_keep(struct work_struct *work);
static DECLARE_DEFERRABLE_WORK(keeper, tracked_keep);
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

/* ---- Getting to know address spaces, and forgetting them */

static struct tracked *tracked_find(const struct mm_struct *mm)
{
	struct tracked *t;

	hash_for_each_possible_rcu(all_tracked, t, node, (unsigned long)mm)
		if (t->lazy.mm == mm)
			return t;
	return NULL;
}

/* Lets the worker get to know @mm, unless it has one to do. */
static void tracked_want(struct mm_struct *mm)
{
	if (READ_ONCE(wanted))
		return;
	mmgrab(mm);
	if (cmpxchg(&wanted, NULL, mm))
		mmdrop(mm);
	else
		mod_delayed_work(system_unbound_wq, &keeper, 0);
}

/* Counts @t where its process is now. Pages that it took along count there. */
static void tracked_regroup(struct tracked *t)
{
	struct mem_cgroup *memcg = get_mem_cgroup_from_mm(t->lazy.mm);
	atomic_long_t *sum = &sums[mem_cgroup_id(memcg)];

	mem_cgroup_put(memcg);
	if (t->lazy.group == sum)
		return;
	spin_lock(&t->lock);
	mmp_lazy_move(&t->lazy, sum);
	spin_unlock(&t->lock);
}

static void tracked_forget(struct tracked *t)
{
	hash_del_rcu(&t->node);
	spin_lock(&t->lock);
	mmp_lazy_move(&t->lazy, NULL);
	spin_unlock(&t->lock);
	mmdrop(t->lazy.mm);
	kvfree_rcu(t, rcu);
}

/* Counts what is lazily freed before the first call that we decide. */
static void tracked_count_all(struct tracked *t)
{
	struct mm_struct *mm = t->lazy.mm;
	unsigned long addr = 0, next;
	struct vm_area_struct *vma;

	mmap_read_lock(mm);
	for (; (vma = find_vma(mm, addr)); addr = next) {
		unsigned long pages;

		addr = max(addr, vma->vm_start);
		next = vma->vm_end;
		pages = mmp_pages_lazy_at(vma, addr, &next);
		mmp_lazy_found(&t->lazy, addr, pages);
		mmap_read_unlock(mm);
		cond_resched();
		mmap_read_lock(mm);
	}
	mmap_read_unlock(mm);
}

/* Its memory is there. */
static void tracked_make(struct mm_struct *mm)
{
	struct tracked *t = sums ? kvzalloc(sizeof(*t), GFP_KERNEL) : NULL;

	if (!t)
		return;
	spin_lock_init(&t->lock);
	t->lazy.ops = &tracked_ops;
	t->lazy.mm = mm;
	mmgrab(mm);
	tracked_regroup(t);
	tracked_count_all(t);
	hash_add_rcu(all_tracked, &t->node, (unsigned long)mm);
}

static void tracked_adopt(struct mm_struct *mm)
{
	struct tracked *t;

	scoped_guard(rcu)
		t = tracked_find(mm);
	if (t && !READ_ONCE(t->stale))
		return;
	if (t)
		tracked_forget(t);
	if (!mmget_not_zero(mm))
		return;
	tracked_make(mm);
	mmput(mm);
}

/* Counts all areas anew, for the others of its group. */
static void tracked_look_at_all(struct tracked *t)
{
	struct mm_struct *mm = t->lazy.mm;
	unsigned int i;

	if (!mmget_not_zero(mm))
		return;
	mmap_read_lock(mm);
	for (i = 0; i < MMP_LAZY_AREAS; i++) {
		scoped_guard(rcu) {
			spin_lock(&t->lock);
			if (t->lazy.areas[i])
				mmp_lazy_look_at(&t->lazy, i);
			spin_unlock(&t->lock);
		}
		cond_resched();
	}
	mmap_read_unlock(mm);
	mmput(mm);
}

/* Forgets address spaces that are gone; follows processes between cgroups. */
static void tracked_tidy(void)
{
	struct hlist_node *next;
	struct tracked *t;
	int i;

	hash_for_each_safe(all_tracked, i, next, t, node) {
		if (READ_ONCE(t->stale) || !atomic_read(&t->lazy.mm->mm_users)) {
			tracked_forget(t);
			continue;
		}
		tracked_regroup(t);
		if (test_bit(t->lazy.group - sums, refused))
			tracked_look_at_all(t);
	}
	bitmap_zero(refused, GROUPS);
	tidied = jiffies;
}

static void tracked_keep(struct work_struct *work)
{
	struct mm_struct *mm = READ_ONCE(wanted);

	if (mm) {
		tracked_adopt(mm);
		WRITE_ONCE(wanted, NULL);
		mmdrop(mm);
	}
	if (time_after_eq(jiffies, tidied + TIDY_INTERVAL))
		tracked_tidy();
	if (!hash_empty(all_tracked))
		queue_delayed_work(system_unbound_wq, &keeper, TIDY_INTERVAL);
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
 * @on: begin? Without memory for it, all answers are %MMP_ANSWER_UNKNOWN.
 *
 * Context: as &mmp_point.switched; nobody is asked at this point before or after.
 */
void mmp_tracked_switched(bool on)
{
	struct hlist_node *next;
	struct tracked *t;
	int i;

	if (on) {
		sums = kvcalloc(GROUPS, sizeof(*sums), GFP_KERNEL);
		tidied = jiffies;
		return;
	}
	synchronize_rcu();
	flush_delayed_work(&keeper);
	cancel_delayed_work_sync(&keeper);
	hash_for_each_safe(all_tracked, i, next, t, node)
		tracked_forget(t);
	kvfree(sums);
}

static enum mmp_lazy_answer tracked_ask(struct tracked *t, const struct mmp_lazy_call *call,
					unsigned long pages, struct mmp_lazy_limit limit)
{
	enum mmp_lazy_answer answer = MMP_ANSWER_UNKNOWN;

	spin_lock(&t->lock);
	if (t->lazy.group)	/* else it has just been forgotten */
		answer = mmp_lazy_ask(&t->lazy, call, pages, limit);
	if (answer == MMP_ANSWER_LIMIT && limit.shared)
		set_bit(t->lazy.group - sums, refused);
	spin_unlock(&t->lock);
	return answer;
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
	struct tracked *t = tracked_find(vma->vm_mm);

	if (t && !READ_ONCE(t->stale))
		return tracked_ask(t, &call, mmp_pages_mapped(vma->vm_mm, start, end), limit);
	tracked_want(vma->vm_mm);
	return MMP_ANSWER_UNKNOWN;
}
