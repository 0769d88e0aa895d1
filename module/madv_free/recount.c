// SPDX-License-Identifier: GPL-2.0
/*
 * What a process has lazily freed, counted by a worker. It only tries the lock of the
 * process, and lets others have it after a few page tables.
 */
#include <linux/cleanup.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>

#include "pages.h"
#include "recount.h"

/* Page tables that are looked at before others get the locks. */
#define TABLES_AT_ONCE	16U

static bool stopping;

/* Counts what was lazily freed in so many areas more; under mmap_lock. */
static void recount_some_new(struct tracked *t, unsigned int tables)
{
	struct mm_struct *mm = t->lazy.mm;
	unsigned long next, pages;
	struct vm_area_struct *vma;

	for (; tables; tables--, t->counted_to = next) {
		vma = find_vma(mm, t->counted_to);
		if (!vma) {
			/* All memory of the process has been counted by now. */
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

/*
 * Others need not wait for a process to end: it has no other user than this then, and
 * gives its memory back when this lets go of it.
 */
static bool recount_goes_on(struct mm_struct *mm)
{
	return !READ_ONCE(stopping) && atomic_read(&mm->mm_users) > 1 && mmap_read_trylock(mm);
}

/**
 * mmp_recount_new - count what was lazily freed before we knew a process
 * @t: which; @known afterwards, if all was counted and its lock was to be had all the time
 * @tables: so many page tables and holes may be looked at; comes back as how many are left
 *
 * It goes on from where an earlier call has ended.
 * Context: may sleep; @t stays.
 */
void mmp_recount_new(struct tracked *t, unsigned int *tables)
{
	struct mm_struct *mm = t->lazy.mm;

	if (!mmget_not_zero(mm))
		return;
	while (!t->known && *tables && recount_goes_on(mm)) {
		unsigned int some = min(*tables, TABLES_AT_ONCE);

		recount_some_new(t, some);
		mmap_read_unlock(mm);
		*tables -= some;
		cond_resched();
	}
	mmput_async(mm);
}

/* Counts some areas anew, from the @index-th on; under mmap_lock. */
static unsigned int recount_some(struct tracked *t, unsigned int index, unsigned int *tables)
{
	unsigned int some = min(*tables, TABLES_AT_ONCE), left = some;

	guard(rcu)();
	spin_lock(&t->lock);
	index = mmp_lazy_recount(&t->lazy, index, &left);
	spin_unlock(&t->lock);
	*tables -= some - left;
	return index;
}

/**
 * mmp_recount - count areas anew, as far as the lock is to be had
 * @t: of which process
 * @index: of the area to begin with
 * @tables: so many page tables may be looked at; comes back as how many are left
 *
 * Context: may sleep; @t stays.
 * Return: where to go on; %MMP_LAZY_AREAS when all was counted, or others have the lock.
 */
unsigned int mmp_recount(struct tracked *t, unsigned int index, unsigned int *tables)
{
	struct mm_struct *mm = t->lazy.mm;

	if (!mmget_not_zero(mm))
		return MMP_LAZY_AREAS;
	while (*tables && index < MMP_LAZY_AREAS) {
		if (!recount_goes_on(mm)) {
			index = MMP_LAZY_AREAS;
			break;
		}
		index = recount_some(t, index, tables);
		mmap_read_unlock(mm);
		cond_resched();
	}
	mmput_async(mm);
	return index;
}

/* With @stop, a count that is under way ends at once, and none begins until it is false. */
void mmp_recount_stop(bool stop)
{
	WRITE_ONCE(stopping, stop);
}
