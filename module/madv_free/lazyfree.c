// SPDX-License-Identifier: GPL-2.0
/*
 * How many pages are lazily freed: an upper bound, kept per area.
 *
 * A call adds the pages of its range to their areas. Reuse is not told, but
 * shows in the page table. So when the sum reaches the limit, areas are counted
 * anew in turn, as a clock does. What that costs is held to a few looks for
 * each page freed. An area that a call is in may not be counted: the call has
 * been added, but does not show yet.
 */
#include <linux/minmax.h>

#include "lazyfree.h"

#define COUNT_MASK	(MMP_AREA_SIZE - 1)

static void lazy_account(struct mmp_lazy *lazy, long pages)
{
	lazy->pages += pages;
	atomic_long_add(pages, lazy->group);
}

/* The place of @task's last call, which has ended, as it makes another one. */
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

/* May a call be in an area? */
static bool lazy_is_busy(struct mmp_lazy *lazy, unsigned long area)
{
	struct mmp_lazy_call *call;

	for (call = lazy->calls; call < lazy->calls + MMP_LAZY_CALLS; call++)
		if (call->task && call->start < area + MMP_AREA_SIZE &&
		    call->end > area && !lazy->ops->ended(call->task))
			return true;
	return false;
}

/* An area without lazily freed pages goes, and with the last one its set. */
static void lazy_clear_area(struct mmp_lazy *lazy, unsigned int index)
{
	unsigned int set = index / MMP_LAZY_WAYS, i;

	lazy->areas[index] = 0;
	for (i = 0; i < MMP_LAZY_WAYS; i++)
		if (lazy->areas[set * MMP_LAZY_WAYS + i])
			return;
	__clear_bit(set, lazy->sets);
}

/**
 * mmp_lazy_look_at - count an area anew
 * @lazy: of which address space
 * @index: of the area
 *
 * Context: what @lazy and the VMAs are protected by.
 * Return: whether it could be counted.
 */
bool mmp_lazy_look_at(struct mmp_lazy *lazy, unsigned int index)
{
	u64 entry = lazy->areas[index];
	unsigned long area = entry & ~COUNT_MASK, pages;

	if (lazy_is_busy(lazy, area))
		return false;
	pages = lazy->ops->lazy(lazy->mm, area, area + MMP_AREA_SIZE);
	lazy_account(lazy, pages - (entry & COUNT_MASK));
	if (pages)
		lazy->areas[index] = area | pages;
	else
		lazy_clear_area(lazy, index);
	return true;
}

/* The same for those who pay. */
static bool lazy_pay_to_look_at(struct mmp_lazy *lazy, unsigned int index)
{
	bool done = mmp_lazy_look_at(lazy, index);

	lazy->looks -= done ? MMP_AREA_PAGES : MMP_LAZY_BUSY_LOOKS;
	return done;
}

static bool lazy_can_pay(const struct mmp_lazy *lazy)
{
	return lazy->looks > MMP_AREA_PAGES;
}

/* Counts the next area anew. */
static bool lazy_look_on(struct mmp_lazy *lazy)
{
	unsigned long set;

	while (lazy_can_pay(lazy)) {
		lazy->hand = (lazy->hand + 1) % MMP_LAZY_AREAS;
		set = find_next_bit(lazy->sets, MMP_LAZY_SETS, lazy->hand / MMP_LAZY_WAYS);
		if (set == MMP_LAZY_SETS)
			set = find_first_bit(lazy->sets, MMP_LAZY_SETS);
		if (set == MMP_LAZY_SETS)
			return false;
		if (set != lazy->hand / MMP_LAZY_WAYS)
			lazy->hand = set * MMP_LAZY_WAYS;
		lazy->looks--;
		if (lazy->areas[lazy->hand] && lazy_pay_to_look_at(lazy, lazy->hand))
			return true;
	}
	return false;
}

static unsigned int lazy_set_of(unsigned long area)
{
	unsigned long number = area / MMP_AREA_SIZE;

	return (number ^ number >> 9 ^ number >> 18) % MMP_LAZY_SETS * MMP_LAZY_WAYS;
}

/* The index of an area, or one that it can have; -1 if there is none. */
static int lazy_index_of(struct mmp_lazy *lazy, unsigned long area)
{
	int set = lazy_set_of(area), free = -1, i;

	for (i = set; i < set + MMP_LAZY_WAYS; i++) {
		if (lazy->areas[i] && (lazy->areas[i] & ~COUNT_MASK) == area)
			return i;
		if (!lazy->areas[i] && free < 0)
			free = i;
	}
	for (i = set; free < 0 && i < set + MMP_LAZY_WAYS && lazy_can_pay(lazy); i++)
		if (lazy_pay_to_look_at(lazy, i) && !lazy->areas[i])
			free = i;
	return free;
}

/* Adds pages that are accounted; what is in the area twice is taken back. */
static bool lazy_add(struct mmp_lazy *lazy, unsigned long addr, unsigned long pages)
{
	unsigned long area = addr & ~COUNT_MASK, before, after;
	int index = pages ? lazy_index_of(lazy, area) : -1;

	if (index < 0)
		return !pages;
	before = lazy->areas[index] & COUNT_MASK;
	after = min(before + pages, MMP_AREA_PAGES + 0UL);
	lazy->areas[index] = area | after;
	__set_bit(index / MMP_LAZY_WAYS, lazy->sets);
	if (after - before != pages)
		lazy_account(lazy, after - before - pages);
	return true;
}

/*
 * Adds the pages of a range, which are accounted. What is not there any more is
 * taken back.
 */
static bool lazy_add_call(struct mmp_lazy *lazy, const struct mmp_lazy_call *call,
			  unsigned long pages)
{
	unsigned long addr = call->start, next, some;
	unsigned int steps = 0;
	bool added = true;

	for (; pages && addr < call->end; addr = next, pages -= some) {
		next = call->end;
		some = pages;
		if (call->end - (addr & ~COUNT_MASK) > MMP_AREA_SIZE)
			some = min(lazy->ops->pages(lazy->mm, addr, &next), pages);
		added = steps++ < MMP_LAZY_MAX_STEPS && lazy_add(lazy, addr, some);
		if (!added)
			break;
	}
	if (pages)
		lazy_account(lazy, -pages);
	return added;
}

static unsigned long lazy_used(const struct mmp_lazy *lazy, bool shared)
{
	return shared ? (unsigned long)atomic_long_read(lazy->group) : lazy->pages;
}

static bool lazy_reserve(struct mmp_lazy *lazy, unsigned long pages,
			 struct mmp_lazy_limit limit)
{
	if (pages > limit.pages)
		return false;
	lazy_account(lazy, pages);
	while (lazy_used(lazy, limit.shared) > limit.pages) {
		if (!lazy_look_on(lazy)) {
			lazy_account(lazy, -pages);
			return false;
		}
	}
	return true;
}

/**
 * mmp_lazy_pages - how many pages a call would free
 * @lazy: of which address space
 * @call: the range
 * @most: how many are of interest
 *
 * Context: mmap_lock is held; RCU read side.
 * Return: the number; more than @most, where it is or would take too long to tell.
 */
unsigned long mmp_lazy_pages(const struct mmp_lazy *lazy,
			     const struct mmp_lazy_call *call, unsigned long most)
{
	unsigned long addr, next, pages = 0;
	unsigned int steps = 0;

	for (addr = call->start; addr < call->end && pages <= most; addr = next) {
		if (steps++ == MMP_LAZY_MAX_STEPS)
			return most + 1;
		next = call->end;
		pages += lazy->ops->pages(lazy->mm, addr, &next);
	}
	return pages;
}

/**
 * mmp_lazy_ask - may a range be freed lazily?
 * @lazy: what is known of the address space
 * @call: the range and who asks; earlier calls of this task have ended
 * @pages: how many pages are mapped in the range, see mmp_lazy_pages()
 * @limit: what to hold to
 *
 * Context: what @lazy is protected by; mmap_lock is held.
 * Return: lazily, or why not. If lazily, @call is taken to be going on until
 * the task asks again.
 */
enum mmp_lazy_answer mmp_lazy_ask(struct mmp_lazy *lazy, const struct mmp_lazy_call *call,
				  unsigned long pages, struct mmp_lazy_limit limit)
{
	struct mmp_lazy_call *place = lazy_place_for_call(lazy, call->task);

	if (!place)
		return MMP_ANSWER_UNKNOWN;
	*place = (struct mmp_lazy_call){ .task = call->task };
	lazy->looks = min(lazy->looks + pages * MMP_LAZY_LOOKS, MMP_LAZY_MAX_LOOKS + 0UL);
	if (!lazy_reserve(lazy, pages, limit))
		return MMP_ANSWER_LIMIT;
	if (!lazy_add_call(lazy, call, pages))
		return MMP_ANSWER_UNKNOWN;
	*place = *call;
	return MMP_ANSWER_LAZY;
}

/**
 * mmp_lazy_found - add what is lazily freed already
 * @lazy: of which address space
 * @addr: in which area
 * @pages: how many
 *
 * What finds no room stays in the sum for good.
 * Context: what @lazy is protected by; mmap_lock is held.
 */
void mmp_lazy_found(struct mmp_lazy *lazy, unsigned long addr, unsigned long pages)
{
	lazy_account(lazy, pages);
	lazy_add(lazy, addr, pages);
}

/**
 * mmp_lazy_move - let another group hold the sum
 * @lazy: of which address space
 * @group: of the new group, or %NULL for none
 *
 * Context: what @lazy is protected by.
 */
void mmp_lazy_move(struct mmp_lazy *lazy, atomic_long_t *group)
{
	if (lazy->group)
		atomic_long_sub(lazy->pages, lazy->group);
	lazy->group = group;
	if (group)
		atomic_long_add(lazy->pages, group);
}
