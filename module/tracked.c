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

#include "compat.h"
#include "lazyfree.h"

#define TIDY_INTERVAL	(HZ / 4)

/**
 * struct group - the processes of a cgroup
 * @list: of all groups
 * @id: of the cgroup
 * @users: address spaces in it
 * @pages: lazily freed at most
 * @refused: a call was refused since @pages was made anew
 */
struct group {
	struct list_head list;
	unsigned int id;
	unsigned int users;
	atomic_long_t pages;
	bool refused;
};

/**
 * struct tracked - an address space that we know
 * @node: in @tracked
 * @rcu: frees it after the last reader
 * @lock: held for what is done with @lazy and @group
 * @group: where its process is
 * @stale: others than us have freed lazily since
 * @lazy: what is lazily freed
 *
 * Made, moved and removed under @registry; mm_struct is kept, its memory not.
 */
struct tracked {
	struct hlist_node node;
	struct rcu_head rcu;
	spinlock_t lock;	/* of lazy and group */
	struct group *group;
	bool stale;
	struct mmp_lazy lazy;
};

static DEFINE_HASHTABLE(all_tracked, 8);
static LIST_HEAD(groups);
static DEFINE_MUTEX(registry);

/* Address spaces to get to know, each with a reference. */
static struct mm_struct *wanted[16];

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

/* The pages below an entry for PMDs, of a range that it maps. */
static __always_inline unsigned long count(pmd_t pmd, unsigned long addr,
					   unsigned long end, bool lazy)
{
	unsigned long n = (end - addr) / PAGE_SIZE, pages = 0;
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
	unsigned long pages = 0;

	while (addr < end) {
		unsigned long next = end;
		pmd_t pmd = pmd_at(mm, addr, &next);

		pages += count(pmd, addr, next, false);
		addr = next;
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
		unsigned long addr = max(start, vma->vm_start);
		unsigned long next = min(end, vma->vm_end);
		pmd_t pmd = pmd_at(mm, addr, &next);

		if (has_lazy(vma))
			pages += count(pmd, addr, next, true);
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

static void adopt_wanted(struct work_struct *work);
static void tidy(struct work_struct *work);
static DECLARE_WORK(adopter, adopt_wanted);
static DECLARE_DEFERRABLE_WORK(tidier, tidy);

static struct tracked *find(const struct mm_struct *mm)
{
	struct tracked *t;

	hash_for_each_possible_rcu(all_tracked, t, node, (unsigned long)mm,
				   rcu_read_lock_held() || lockdep_is_held(&registry))
		if (t->lazy.mm == mm)
			return t;
	return NULL;
}

/* Lets the worker get to know @mm, if it has not too many to do. */
static void want(struct mm_struct *mm)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(wanted); i++) {
		struct mm_struct *other = READ_ONCE(wanted[i]);

		if (other == mm)
			return;
		if (other)
			continue;
		mmgrab(mm);
		if (cmpxchg(&wanted[i], NULL, mm)) {
			mmdrop(mm);
			continue;
		}
		queue_work(system_unbound_wq, &adopter);
		return;
	}
}

static struct group *get_group(unsigned int id)
{
	struct group *group;

	list_for_each_entry(group, &groups, list)
		if (group->id == id)
			goto found;
	group = kzalloc(sizeof(*group), GFP_KERNEL);
	if (!group)
		return NULL;
	group->id = id;
	list_add(&group->list, &groups);
found:
	group->users++;
	return group;
}

static void put_group(struct group *group)
{
	if (--group->users)
		return;
	list_del(&group->list);
	kfree(group);
}

/* Of the cgroup of a process, for as long as that has processes. */
static unsigned int cgroup_of(struct mm_struct *mm)
{
	struct mem_cgroup *memcg = get_mem_cgroup_from_mm(mm);
	unsigned int id = mem_cgroup_id(memcg);

	mem_cgroup_put(memcg);
	return id;
}

/* Puts @t where its process is now. Pages that it took along count there. */
static void regroup(struct tracked *t)
{
	unsigned int id = cgroup_of(t->lazy.mm);
	struct group *old = t->group, *new;

	if (old && old->id == id)
		return;
	new = get_group(id);
	if (!new)
		return;
	spin_lock(&t->lock);
	t->group = new;
	mmp_lazy_move(&t->lazy, &new->pages);
	spin_unlock(&t->lock);
	if (old)
		put_group(old);
}

static void forget(struct tracked *t)
{
	hash_del_rcu(&t->node);
	spin_lock(&t->lock);
	mmp_lazy_move(&t->lazy, NULL);
	spin_unlock(&t->lock);
	put_group(t->group);
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
		pmd_t pmd;

		addr = max(addr, vma->vm_start);
		next = vma->vm_end;
		if (!has_lazy(vma))
			continue;
		pmd = pmd_at(mm, addr, &next);
		mmp_lazy_found(&t->lazy, addr, count(pmd, addr, next, true));
		mmap_read_unlock(mm);
		cond_resched();
		mmap_read_lock(mm);
	}
	mmap_read_unlock(mm);
}

static struct tracked *make_tracked(struct mm_struct *mm)
{
	struct tracked *t = kvzalloc(sizeof(*t), GFP_KERNEL);

	if (!t)
		return NULL;
	spin_lock_init(&t->lock);
	t->lazy.ops = &ops;
	t->lazy.mm = mm;
	regroup(t);
	if (t->group)
		return t;
	kvfree(t);
	return NULL;
}

static void adopt(struct mm_struct *mm)
{
	struct tracked *t = find(mm);

	if (t && !READ_ONCE(t->stale))
		return;
	if (t)
		forget(t);
	if (!mmget_not_zero(mm))
		return;
	t = make_tracked(mm);
	if (t) {
		mmgrab(mm);
		count_all(t);
		hash_add_rcu(all_tracked, &t->node, (unsigned long)mm);
	}
	mmput(mm);
}

static void adopt_wanted(struct work_struct *work)
{
	unsigned int i;

	guard(mutex)(&registry);
	for (i = 0; i < ARRAY_SIZE(wanted); i++) {
		struct mm_struct *mm = READ_ONCE(wanted[i]);

		if (!mm)
			continue;
		adopt(mm);
		WRITE_ONCE(wanted[i], NULL);
		mmdrop(mm);
	}
	schedule_delayed_work(&tidier, TIDY_INTERVAL);
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
static void tidy(struct work_struct *work)
{
	struct hlist_node *next;
	struct group *group;
	struct tracked *t;
	int i;

	guard(mutex)(&registry);
	hash_for_each_safe(all_tracked, i, next, t, node) {
		if (READ_ONCE(t->stale) || !atomic_read(&t->lazy.mm->mm_users)) {
			forget(t);
			continue;
		}
		regroup(t);
		if (READ_ONCE(t->group->refused))
			look_at_all(t);
	}
	list_for_each_entry(group, &groups, list)
		WRITE_ONCE(group->refused, false);
	if (!hash_empty(all_tracked))
		schedule_delayed_work(&tidier, TIDY_INTERVAL);
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
 * mmp_tracked_forget - forget all address spaces
 *
 * Context: may sleep; nobody is asked at this point any more.
 */
void mmp_tracked_forget(void)
{
	struct hlist_node *next;
	struct tracked *t;
	int i;

	synchronize_rcu();
	flush_work(&adopter);
	cancel_delayed_work_sync(&tidier);
	guard(mutex)(&registry);
	hash_for_each_safe(all_tracked, i, next, t, node)
		forget(t);
}

static enum mmp_free ask(struct tracked *t, const struct mmp_lazy_call *call,
			 unsigned long pages, struct mmp_lazy_limit limit)
{
	enum mmp_free answer;

	spin_lock(&t->lock);
	answer = mmp_lazy_ask(&t->lazy, call, pages, limit);
	if (answer == MMP_FREE_LIMIT && limit.shared)
		WRITE_ONCE(t->group->refused, true);
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
enum mmp_free mmp_tracked_ask(struct vm_area_struct *vma, unsigned long start,
			      unsigned long end, struct mmp_lazy_limit limit)
{
	const struct mmp_lazy_call call = { start, end, current->pid };
	struct tracked *t = find(vma->vm_mm);

	if (t && !READ_ONCE(t->stale))
		return ask(t, &call, count_pages(vma->vm_mm, start, end), limit);
	want(vma->vm_mm);
	return MMP_FREE_UNKNOWN;
}
