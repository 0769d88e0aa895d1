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
#define TABLES_AT_ONCE	16

static bool stopping;

/* Counts what was lazily freed in some areas more; under mmap_lock. */
static void recount_some_new(struct tracked *t)
{
	struct mm_struct *mm = t->lazy.mm;
	unsigned long next, pages;
	struct vm_area_struct *vma;
	int i;

	for (i = 0; i < TABLES_AT_ONCE; i++, t->counted_to = next) {
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
 * @t: which; @known afterwards, if its lock was to be had all the time
 *
 * Context: may sleep; @t stays.
 */
void mmp_recount_new(struct tracked *t)
{
	struct mm_struct *mm = t->lazy.mm;

	if (!mmget_not_zero(mm))
		return;
	while (!t->known && recount_goes_on(mm)) {
		recount_some_new(t);
		mmap_read_unlock(mm);
		cond_resched();
	}
	mmput_async(mm);
}

/* Counts some areas anew, from the @i-th on; under mmap_lock. */
static unsigned int recount_some(struct tracked *t, unsigned int i)
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

/**
 * mmp_recount_all - count all areas anew, as far as the lock is to be had
 * @t: of which process
 *
 * Context: may sleep; @t stays.
 */
void mmp_recount_all(struct tracked *t)
{
	struct mm_struct *mm = t->lazy.mm;
	unsigned int i = 0;

	if (!mmget_not_zero(mm))
		return;
	while (i < MMP_LAZY_AREAS && recount_goes_on(mm)) {
		i = recount_some(t, i);
		mmap_read_unlock(mm);
		cond_resched();
	}
	mmput_async(mm);
}

/* With @stop, a count that is under way ends at once, and none begins until it is false. */
void mmp_recount_stop(bool stop)
{
	WRITE_ONCE(stopping, stop);
}
