// SPDX-License-Identifier: GPL-2.0
/*
 * Recounts the lazily freed pages of a process in a worker. The worker only
 * tries to take mmap_lock, and drops it after a few page tables.
 */
#include <linux/cleanup.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>

#include "pages.h"
#include "recount.h"

/*
 * The worker examines at most this many page tables before it drops mmap_lock.
 */
#define TABLES_AT_ONCE	16U

static bool stopping;

/*
 * Adds the lazily freed pages of the next @tables areas to the counts of a
 * process that was not counted before. The caller holds mmap_lock.
 */
static void recount_some_new(struct tracked *t, unsigned int tables)
{
	struct mm_struct *mm = t->lazy.mm;
	unsigned long next, pages;
	struct vm_area_struct *vma;

	for (; tables; tables--, t->counted_to = next) {
		vma = find_vma(mm, t->counted_to);
		if (!vma) {
			/* All memory of the process has been counted. */
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
 * Returns true if the recount may continue, with mmap_lock taken. The worker
 * must not delay the exit of a process: once it is the last user of the memory,
 * it stops, and mmput_async() frees the memory.
 */
static bool recount_goes_on(struct mm_struct *mm)
{
	return !READ_ONCE(stopping) && atomic_read(&mm->mm_users) > 1 && mmap_read_trylock(mm);
}

/**
 * mmp_recount_new - count pages that were lazily freed before the process was
 * tracked
 * @t: the process; sets @known if all memory was counted
 * @tables: number of page tables and holes to examine at most; set to the
 *	number left
 *
 * Continues where an earlier call has stopped.
 * Context: may sleep; the caller keeps @t.
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

/*
 * Recounts at most TABLES_AT_ONCE areas from @index on, and deducts them from
 * *@tables. Returns the area to continue with. The caller holds mmap_lock.
 */
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
 * mmp_recount - recount areas while mmap_lock can be taken
 * @t: the process
 * @index: area to begin with
 * @tables: number of page tables to examine at most; set to the number left
 *
 * Context: may sleep; the caller keeps @t.
 * Return: area to continue with; %MMP_LAZY_AREAS when all was counted, or if
 * another task holds the lock.
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

/*
 * With true, stops a recount in progress at once and lets no other start. With
 * false, allows recounts again.
 */
void mmp_recount_stop(bool stop)
{
	WRITE_ONCE(stopping, stop);
}
