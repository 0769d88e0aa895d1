// SPDX-License-Identifier: GPL-2.0
/*
 * Keeps an upper bound of the pages that a process has freed lazily
 * (MADV_FREE), per area of 2 MB.
 *
 * An madvise() call adds the pages of its range to their areas. No callback
 * reports when a page is used again, but the page table shows it. So when the
 * sum reaches the limit, areas are recounted in turn, as by a clock hand.
 * Recounts read at most 16 page table entries for each page freed. An area in
 * the range of a running call must not be recounted: its pages have been added,
 * but the page table does not show them as lazily freed yet.
 *
 * The lock is dropped during a recount. If another task changes the area in
 * between, the result is discarded; to detect this, changes are numbered, and
 * each area stores the number of its last change.
 */
#include <linux/bits.h>
#include <linux/minmax.h>

#include "lazyfree.h"

/*
 * Layout of an entry of &mmp_lazy.areas, from high to low bits: address of the area, number of its
 * last change, number of its lazily freed pages.
 */
#define AREA_MASK	(~(MMP_AREA_SIZE - 1UL))
#define CHANGE_SHIFT	10
#define COUNT_MASK	(BIT(CHANGE_SHIFT) - 1)

/*
 * Adds @pages, which may be negative, to the sums of lazily freed pages of the process and of its
 * group. A process without a group is no longer tracked.
 */
static void lazy_account(struct mmp_lazy *lazy, long pages)
{
	lazy->pages += pages;
	if (lazy->group)
		atomic_long_add(pages, lazy->group);
}

/*
 * Returns the slot in which @task's last madvise() call is recorded, or a free
 * slot, or NULL. The recorded call may be replaced: @task makes another one now,
 * so it has ended.
 */
static struct mmp_lazy_call *lazy_place_for_call(struct mmp_lazy *lazy, u32 task)
{
	struct mmp_lazy_call *free = NULL;
	unsigned int i;

	for (i = 0; i < MMP_LAZY_CALLS; i++) {
		struct mmp_lazy_call *call = &lazy->calls[(task + i) % MMP_LAZY_CALLS];

		if (call->task == task)
			return call;
		if (!free && (!call->task || lazy->ops->ended(call->task)))
			free = call;
	}
	return free;
}

/*
 * Returns true if a madvise() call that may still run overlaps an area, so the
 * area must not be recounted.
 */
static bool lazy_is_busy(struct mmp_lazy *lazy, unsigned long area)
{
	struct mmp_lazy_call *call;

	for (call = lazy->calls; call < lazy->calls + MMP_LAZY_CALLS; call++)
		if (call->task && call->start < area + MMP_AREA_SIZE &&
		    call->end > area && !lazy->ops->ended(call->task))
			return true;
	return false;
}

/*
 * Removes an area without lazily freed pages from the table. If its set is empty now, clears the
 * bit of the set in the bitmap of used sets.
 */
static void lazy_clear_area(struct mmp_lazy *lazy, unsigned int index)
{
	unsigned int set = index / MMP_LAZY_WAYS, i;

	lazy->areas[index] = 0;
	for (i = 0; i < MMP_LAZY_WAYS; i++)
		if (lazy->areas[set * MMP_LAZY_WAYS + i])
			return;
	__clear_bit(set, lazy->sets);
}

/*
 * Recounts the lazily freed pages of an area, with the lock dropped. Returns false, without a
 * change, if another task has changed the area or the pages could not be counted.
 */
static bool lazy_count_anew(struct mmp_lazy *lazy, unsigned int index)
{
	u64 entry = lazy->areas[index];
	unsigned long area = entry & AREA_MASK, pages;

	pages = lazy->ops->lazy(lazy, area);
	if (pages == MMP_LAZY_UNKNOWN || lazy->areas[index] != entry ||
	    lazy_is_busy(lazy, area))
		return false;
	lazy_account(lazy, pages - (entry & COUNT_MASK));
	if (pages)
		lazy->areas[index] = (entry & ~COUNT_MASK) | pages;
	else
		lazy_clear_area(lazy, index);
	return true;
}

/**
 * mmp_lazy_look_at - recount an area, unless a running madvise() call overlaps it
 * @lazy: counts of an address space
 * @index: index of the area
 *
 * Context: under the lock of @lazy and the lock of the VMAs.
 * Return: whether the area was counted.
 */
bool mmp_lazy_look_at(struct mmp_lazy *lazy, unsigned int index)
{
	return !lazy_is_busy(lazy, lazy->areas[index] & AREA_MASK) &&
	       lazy_count_anew(lazy, index);
}

/**
 * mmp_lazy_recount - recount areas in their order
 * @lazy: counts of an address space
 * @index: area to begin with
 * @tables: number of page tables to examine at most; returns the number left
 *
 * Context: under the lock of @lazy and the lock of the VMAs.
 * Return: area to continue with; %MMP_LAZY_AREAS when no other area is left.
 */
unsigned int mmp_lazy_recount(struct mmp_lazy *lazy, unsigned int index, unsigned int *tables)
{
	unsigned int set;

	for (; *tables && index < MMP_LAZY_AREAS; index++) {
		set = find_next_bit(lazy->sets, MMP_LAZY_SETS, index / MMP_LAZY_WAYS);
		if (set != index / MMP_LAZY_WAYS)
			index = set * MMP_LAZY_WAYS;
		if (index < MMP_LAZY_AREAS && lazy->areas[index]) {
			mmp_lazy_look_at(lazy, index);
			--*tables;
		}
	}
	return min(index, MMP_LAZY_AREAS + 0U);
}

/*
 * Recounts an area on behalf of a madvise() call, and deducts the cost from *@looks, the number of
 * page table entries that the call may still read. Returns true if the area was recounted.
 */
static bool lazy_pay_to_look_at(struct mmp_lazy *lazy, unsigned int index,
				unsigned long *looks)
{
	if (lazy_is_busy(lazy, lazy->areas[index] & AREA_MASK)) {
		*looks -= MMP_LAZY_BUSY_LOOKS;
		return false;
	}
	*looks -= MMP_AREA_PAGES;
	return lazy_count_anew(lazy, index);
}

static bool lazy_can_pay(unsigned long looks)
{
	return looks > MMP_AREA_PAGES;
}

/*
 * Recounts the next area in turn, if the call may still read enough page table entries (*@looks).
 * Returns false if no area was recounted.
 */
static bool lazy_look_on(struct mmp_lazy *lazy, unsigned long *looks)
{
	unsigned long set;

	while (lazy_can_pay(*looks)) {
		lazy->hand = (lazy->hand + 1) % MMP_LAZY_AREAS;
		set = find_next_bit(lazy->sets, MMP_LAZY_SETS, lazy->hand / MMP_LAZY_WAYS);
		if (set == MMP_LAZY_SETS)
			set = find_first_bit(lazy->sets, MMP_LAZY_SETS);
		if (set == MMP_LAZY_SETS)
			return false;
		if (set != lazy->hand / MMP_LAZY_WAYS)
			lazy->hand = set * MMP_LAZY_WAYS;
		--*looks;
		if (lazy->areas[lazy->hand] && lazy_pay_to_look_at(lazy, lazy->hand, looks))
			return true;
	}
	return false;
}

static unsigned int lazy_set_of(unsigned long area)
{
	unsigned long number = area / MMP_AREA_SIZE;

	return (number ^ number >> 9 ^ number >> 18) % MMP_LAZY_SETS * MMP_LAZY_WAYS;
}

/*
 * Returns the index of an area in the table, or a free index in the set that the area hashes to; -1
 * if it is not in the table and the set is full.
 */
static int lazy_find(const struct mmp_lazy *lazy, unsigned long area)
{
	int set = lazy_set_of(area), free = -1, i;

	for (i = set; i < set + MMP_LAZY_WAYS; i++) {
		if (lazy->areas[i] && (lazy->areas[i] & AREA_MASK) == area)
			return i;
		if (!lazy->areas[i] && free < 0)
			free = i;
	}
	return free;
}

/*
 * Returns the index of an area in the table, or a free index for it. If its set is full, recounts
 * areas of the set until one becomes empty, which frees its index. Returns -1 if none does, or if
 * *@looks allows no more recounts.
 */
static int lazy_index_of(struct mmp_lazy *lazy, unsigned long area, unsigned long *looks)
{
	int set = lazy_set_of(area), index = lazy_find(lazy, area), i;

	for (i = set; index < 0 && i < set + MMP_LAZY_WAYS && lazy_can_pay(*looks); i++) {
		lazy_pay_to_look_at(lazy, i, looks);
		index = lazy_find(lazy, area);
	}
	return index;
}

/*
 * Adds @pages to the count of their area. The sums include them already. A
 * count is at most MMP_AREA_PAGES, so the excess is subtracted from the sums.
 * Returns false if the table has no free slot for the area.
 */
static bool lazy_add(struct mmp_lazy *lazy, unsigned long addr, unsigned long pages,
		     unsigned long *looks)
{
	unsigned long area = addr & AREA_MASK, before, after, change;
	int index = pages ? lazy_index_of(lazy, area, looks) : -1;

	if (index < 0)
		return !pages;
	before = lazy->areas[index] & COUNT_MASK;
	after = min(before + pages, MMP_AREA_PAGES + 0UL);
	lazy->changes++;
	change = (lazy->changes << CHANGE_SHIFT) & ~AREA_MASK;
	lazy->areas[index] = area | change | after;
	__set_bit(index / MMP_LAZY_WAYS, lazy->sets);
	if (after - before != pages)
		lazy_account(lazy, after - before - pages);
	return true;
}

/*
 * Returns the number of the area of @addr within the range of a call, from 0.
 */
static unsigned long lazy_nr(const struct mmp_lazy_call *call, unsigned long addr)
{
	return addr / MMP_AREA_SIZE - call->start / MMP_AREA_SIZE;
}

/*
 * Adds the pages of the range of one MADV_FREE call to the areas that they are
 * in. The sums of lazily freed pages of the process and of its group include
 * these pages already, so what is not added is subtracted from them: pages that
 * are no longer mapped, and all that remain if an area cannot be added. Returns
 * false in that case.
 */
static bool lazy_add_call(struct mmp_lazy *lazy, const struct mmp_lazy_call *call,
			  const struct mmp_lazy_count *count, unsigned long *looks)
{
	unsigned long addr = call->start, pages = count->pages, next, some, nr;
	unsigned int steps = 0;
	bool added = true;

	for (; pages && addr < call->end; addr = next, pages -= some) {
		nr = lazy_nr(call, addr);
		next = min((addr & AREA_MASK) + MMP_AREA_SIZE, call->end);
		if (nr < MMP_LAZY_COUNTED) {
			some = count->in[nr];
		} else {
			next = call->end;
			some = lazy->ops->pages(lazy->mm, addr, &next, false);
		}
		some = min(some, pages);
		added = steps++ < MMP_LAZY_MAX_STEPS && lazy_add(lazy, addr, some, looks);
		if (!added)
			break;
	}
	if (pages)
		lazy_account(lazy, -pages);
	return added;
}

static unsigned long lazy_used(const struct mmp_lazy *lazy, bool shared)
{
	return shared && lazy->group ? (unsigned long)atomic_long_read(lazy->group) :
				       lazy->pages;
}

static bool lazy_reserve(struct mmp_lazy *lazy, unsigned long pages,
			 struct mmp_lazy_limit limit, unsigned long *looks)
{
	if (pages > limit.pages)
		return false;
	lazy_account(lazy, pages);
	while (lazy_used(lazy, limit.shared) > limit.pages) {
		if (!lazy_look_on(lazy, looks)) {
			lazy_account(lazy, -pages);
			return false;
		}
	}
	return true;
}

/**
 * mmp_lazy_count - count the pages that a call would free, or more
 * @lazy: counts of an address space
 * @call: the range
 * @most: largest number of interest
 * @count: the result; more than @most pages if there are more, or if counting would take too
 *	long. Beyond the first %MMP_LAZY_COUNTED areas, each page table counts as full.
 *
 * Context: mmap_lock is held; RCU read side.
 */
void mmp_lazy_count(const struct mmp_lazy *lazy, const struct mmp_lazy_call *call,
		    unsigned long most, struct mmp_lazy_count *count)
{
	unsigned long addr, next, pages, nr;
	unsigned int steps = 0;

	*count = (struct mmp_lazy_count){};
	for (addr = call->start; addr < call->end && count->pages <= most; addr = next) {
		if (steps++ == MMP_LAZY_MAX_STEPS) {
			count->pages = most + 1;
			return;
		}
		next = call->end;
		nr = lazy_nr(call, addr);
		pages = lazy->ops->pages(lazy->mm, addr, &next, nr < MMP_LAZY_COUNTED);
		if (nr < MMP_LAZY_COUNTED)
			count->in[nr] = pages;
		count->pages += pages;
	}
}

/*
 * Implements mmp_lazy_ask() for a call that gets the slot @place in @lazy, and may read *@looks
 * page table entries in recounts.
 */
static enum mmp_lazy_answer lazy_ask(struct mmp_lazy *lazy, const struct mmp_lazy_call *call,
				     struct mmp_lazy_call *place,
				     const struct mmp_lazy_count *count,
				     struct mmp_lazy_limit limit, unsigned long *looks)
{
	if (!lazy_reserve(lazy, count->pages, limit, looks))
		return MMP_ANSWER_LIMIT;
	/*
	 * The call is stored before its pages are added: other tasks may recount areas in between,
	 * and must skip those of a running call.
	 */
	*place = *call;
	if (lazy_add_call(lazy, call, count, looks))
		return MMP_ANSWER_LAZY;
	*place = (struct mmp_lazy_call){ .task = call->task };
	return MMP_ANSWER_UNKNOWN;
}

/**
 * mmp_lazy_ask - decide whether a range is freed lazily
 * @lazy: counts of the address space
 * @call: the range and the calling task; earlier calls of this task have ended
 * @count: mapped pages in the range, see mmp_lazy_count()
 * @limit: the limit to apply
 *
 * Other tasks may call this function while it recounts areas. So it takes all
 * page table reads saved up in @lazy for itself, and returns the unused ones.
 * Context: under the lock of @lazy; mmap_lock is held.
 * Return: lazily, or the reason why not. If lazily, @call counts as running
 * until the task asks again.
 */
enum mmp_lazy_answer mmp_lazy_ask(struct mmp_lazy *lazy, const struct mmp_lazy_call *call,
				  const struct mmp_lazy_count *count,
				  struct mmp_lazy_limit limit)
{
	const unsigned long most = MMP_LAZY_MAX_LOOKS;
	struct mmp_lazy_call *place = lazy_place_for_call(lazy, call->task);
	enum mmp_lazy_answer answer;
	unsigned long looks;

	if (!place)
		return MMP_ANSWER_UNKNOWN;
	*place = (struct mmp_lazy_call){ .task = call->task };
	looks = min(lazy->looks + count->pages * MMP_LAZY_LOOKS, most);
	lazy->looks = 0;
	answer = lazy_ask(lazy, call, place, count, limit, &looks);
	lazy->looks = min(lazy->looks + looks, most);
	return answer;
}

/**
 * mmp_lazy_found - add pages that were lazily freed before tracking began
 * @lazy: counts of an address space
 * @addr: an address in the area
 * @pages: number of pages
 *
 * If the set of the area is full, its pages stay in the sum until tracking of
 * the process ends.
 * Context: under the lock of @lazy; mmap_lock is held.
 */
void mmp_lazy_found(struct mmp_lazy *lazy, unsigned long addr, unsigned long pages)
{
	unsigned long looks = 0;

	lazy_account(lazy, pages);
	lazy_add(lazy, addr, pages, &looks);
}

/**
 * mmp_lazy_move - charge the sum to another group
 * @lazy: counts of an address space
 * @group: sum of the new group, or %NULL for none
 *
 * Context: under the lock of @lazy.
 */
void mmp_lazy_move(struct mmp_lazy *lazy, atomic_long_t *group)
{
	if (lazy->group)
		atomic_long_sub(lazy->pages, lazy->group);
	lazy->group = group;
	if (group)
		atomic_long_add(lazy->pages, group);
}
