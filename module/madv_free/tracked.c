// SPDX-License-Identifier: GPL-2.0
/*
 * The address spaces of which lazyfree.c keeps the sums: getting to know them
 * and forgetting them, counting their pages, and the cgroups that they are in.
 */
#include <linux/hashtable.h>
#include <linux/memcontrol.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <linux/workqueue.h>

#include "../compat.h"
#include "lazyfree.h"

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

static void keep(struct work_struct *work);
static DECLARE_DEFERRABLE_WORK(keeper, keep);
static unsigned long tidied;	/* in jiffies */

/* ---- Counting */

/*
 * The entry of the PMD of @addr, and the end of what it, or an empty entry above
 * it, maps. A VMA at @addr keeps the tables.
 */
static pmd_t pmd_at(struct mm_struct *mm, unsigned long addr, unsigned long *end)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t *pud;

	*end = pgd_addr_end(addr, *end);
	if (pgd_none(READ_ONCE(*pgd)))
		return __pmd(0);
	p4d = p4d_offset(pgd, addr);
	*end = p4d_addr_end(addr, *end);
	if (p4d_none(READ_ONCE(*p4d)))
		return __pmd(0);
	pud = pud_offset(p4d, addr);
	*end = pud_addr_end(addr, *end);
	if (pud_none(READ_ONCE(*pud)) || pud_leaf(READ_ONCE(*pud)))
		return __pmd(0);
	*end = pmd_addr_end(addr, *end);
	return pmdp_get_lockless(pmd_offset(pud, addr));
}

/*
 * Is a page that its entry says is clean lazily freed? It need not be on the
 * list of those yet, but what came from swap is still in swap, or dirty.
 */
static bool is_lazy(const struct page *page)
{
	const struct folio *folio = page_folio(page);

	return folio_test_anon(folio) &&
	       !(mmp_folio_flags(folio) & (BIT(PG_dirty) | BIT(PG_swapcache)));
}

/* On its way to another place; maybe clean. */
static noinline bool is_moving(pte_t pte)
{
	return !pte_none(pte) && is_migration_entry(pte_to_swp_entry(pte));
}

static __always_inline bool counts(pte_t pte, bool lazy)
{
	if (!pte_present(pte))
		return is_moving(pte);
	if (lazy && pte_dirty(pte))
		return false;
	return !pte_special(pte) && (!lazy || is_lazy(pte_page(pte)));
}

static bool counts_huge(pmd_t pmd, bool lazy)
{
	if (!pmd_present(pmd))
		return !pmd_none(pmd);
	return !lazy || (!pmd_dirty(pmd) && is_lazy(pmd_page(pmd)));
}

/*
 * How many pages of a range are mapped, or lazily freed, up to the end of the
 * page table, or of a hole above it; *@end comes back as that.
 */
static __always_inline unsigned long count(struct mm_struct *mm, unsigned long addr,
					   unsigned long *end, bool lazy)
{
	pmd_t pmd = pmd_at(mm, addr, end);
	unsigned long n = (*end - addr) / PAGE_SIZE, pages = 0;
	const pte_t *pte, *last;

	if (!mmp_is_table(pmd))
		return counts_huge(pmd, lazy) ? n : 0;
	pte = mmp_table(pmd) + pte_index(addr);
	for (last = pte + n; pte < last; pte++)
		pages += counts(ptep_get_lockless((pte_t *)pte), lazy);
	return pages;
}

/* How many are mapped in a range of a VMA. */
static unsigned long count_pages(struct mm_struct *mm, unsigned long addr,
				 unsigned long end)
{
	unsigned long pages = 0, next;

	for (; addr < end; addr = next) {
		next = end;
		pages += count(mm, addr, &next, false);
	}
	return pages;
}

static bool has_lazy(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) && !(vma->vm_flags & VM_SPECIAL);
}

/* How many are lazily freed in a range of an area, of whatever VMAs. */
static unsigned long count_lazy(struct mm_struct *mm, unsigned long start,
				unsigned long end)
{
	struct vm_area_struct *vma;
	unsigned long pages = 0;

	VMA_ITERATOR(vmi, mm, start);

	for_each_vma_range(vmi, vma, end) {
		unsigned long next = min(end, vma->vm_end);

		if (has_lazy(vma))
			pages += count(mm, max(start, vma->vm_start), &next, true);
	}
	return pages;
}

/*
 * A task that waits for an event, or is no more, is not in madvise(), which
 * waits for nothing but locks.
 */
static bool call_ended(u32 pid)
{
	struct task_struct *task = pid_task(find_pid_ns(pid, &init_pid_ns), PIDTYPE_PID);

	return !task || (READ_ONCE(task->__state) & TASK_INTERRUPTIBLE);
}

static const struct mmp_lazy_ops ops = {
	.pages = count_pages,
	.lazy = count_lazy,
	.ended = call_ended,
};

/* ---- Getting to know address spaces, and forgetting them */

static struct tracked *find(const struct mm_struct *mm)
{
	struct tracked *t;

	hash_for_each_possible_rcu(all_tracked, t, node, (unsigned long)mm)
		if (t->lazy.mm == mm)
			return t;
	return NULL;
}

/* Lets the worker get to know @mm, unless it has one to do. */
static void want(struct mm_struct *mm)
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
static void regroup(struct tracked *t)
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

static void forget(struct tracked *t)
{
	hash_del_rcu(&t->node);
	spin_lock(&t->lock);
	mmp_lazy_move(&t->lazy, NULL);
	spin_unlock(&t->lock);
	mmdrop(t->lazy.mm);
	kvfree_rcu(t, rcu);
}

/* Counts what is lazily freed before the first call that we decide. */
static void count_all(struct tracked *t)
{
	struct mm_struct *mm = t->lazy.mm;
	unsigned long addr = 0, next;
	struct vm_area_struct *vma;

	mmap_read_lock(mm);
	for (; (vma = find_vma(mm, addr)); addr = next) {
		addr = max(addr, vma->vm_start);
		next = vma->vm_end;
		if (!has_lazy(vma))
			continue;
		mmp_lazy_found(&t->lazy, addr, count(mm, addr, &next, true));
		mmap_read_unlock(mm);
		cond_resched();
		mmap_read_lock(mm);
	}
	mmap_read_unlock(mm);
}

/* Its memory is there. */
static void make_tracked(struct mm_struct *mm)
{
	struct tracked *t = sums ? kvzalloc(sizeof(*t), GFP_KERNEL) : NULL;

	if (!t)
		return;
	spin_lock_init(&t->lock);
	t->lazy.ops = &ops;
	t->lazy.mm = mm;
	mmgrab(mm);
	regroup(t);
	count_all(t);
	hash_add_rcu(all_tracked, &t->node, (unsigned long)mm);
}

static void adopt(struct mm_struct *mm)
{
	struct tracked *t;

	scoped_guard(rcu)
		t = find(mm);
	if (t && !READ_ONCE(t->stale))
		return;
	if (t)
		forget(t);
	if (!mmget_not_zero(mm))
		return;
	make_tracked(mm);
	mmput(mm);
}

/* Counts all areas anew, for the others of its group. */
static void look_at_all(struct tracked *t)
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
static void tidy(void)
{
	struct hlist_node *next;
	struct tracked *t;
	int i;

	hash_for_each_safe(all_tracked, i, next, t, node) {
		if (READ_ONCE(t->stale) || !atomic_read(&t->lazy.mm->mm_users)) {
			forget(t);
			continue;
		}
		regroup(t);
		if (test_bit(t->lazy.group - sums, refused))
			look_at_all(t);
	}
	bitmap_zero(refused, GROUPS);
	tidied = jiffies;
}

static void keep(struct work_struct *work)
{
	struct mm_struct *mm = READ_ONCE(wanted);

	if (mm) {
		adopt(mm);
		WRITE_ONCE(wanted, NULL);
		mmdrop(mm);
	}
	if (time_after_eq(jiffies, tidied + TIDY_INTERVAL))
		tidy();
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
	struct tracked *t = find(mm);

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
		forget(t);
	kvfree(sums);
}

static enum mmp_lazy_answer ask(struct tracked *t, const struct mmp_lazy_call *call,
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
	struct tracked *t = find(vma->vm_mm);

	if (t && !READ_ONCE(t->stale))
		return ask(t, &call, count_pages(vma->vm_mm, start, end), limit);
	want(vma->vm_mm);
	return MMP_ANSWER_UNKNOWN;
}
