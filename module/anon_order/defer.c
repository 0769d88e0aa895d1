// SPDX-License-Identifier: GPL-2.0
#include "defer.h"

/*
 * After N order-0 folios in a row, the next N/16 faults get order 0 without a
 * look at page tables, up to MMP_AHEAD_MOST faults.
 */
#define SHIFT	4
/*
 * If memory near a fault is used but no large folio fits around it, only one
 * such fault in RETRY makes later faults skip the look at page tables, because
 * one of the next addresses may have room for a folio.
 */
#define RETRY	8U

DEFINE_PER_CPU(struct mmp_deferral, mmp_deferral);

/**
 * mmp_ahead_take - read and clear this CPU's number of faults answered in
 * advance
 * @reason: set to the reason under which these faults are counted
 *
 * If the faults are deferred, this adds them to the count of small folios.
 * Context: preemption has been off since the policy was called.
 * Return: the number of faults answered in advance.
 */
u32 mmp_ahead_take(enum mmp_reason *reason)
{
	const u32 ahead = this_cpu_read(mmp_ahead), faults = ahead >> MMP_AHEAD_SHIFT;

	this_cpu_write(mmp_ahead, 0);
	*reason = (u8)ahead;
	if (*reason == MMP_DEFERRED)
		raw_cpu_add(mmp_deferral.small, faults);
	return faults;
}

/**
 * mmp_defer_until - set how many faults of a process skip the look at page
 * tables
 * @mm: the process of the current fault, which gets order 0
 * @inside: true if memory nearby is used but no folio fits around the fault
 */
void mmp_defer_until(const struct mm_struct *mm, bool inside)
{
	const u32 small = raw_cpu_read(mmp_deferral.small);
	const bool other = raw_cpu_read(mmp_deferral.last) != mm;
	const struct mm_struct *deferred = other ? NULL : mm;
	u32 gap = min(small >> SHIFT, MMP_AHEAD_MOST);

	if (inside && small % RETRY)
		gap = 0;
	raw_cpu_write(mmp_deferral.deferred, deferred);
	raw_cpu_write(mmp_deferral.last, mm);
	if (other)
		raw_cpu_write(mmp_deferral.small, 1);
	raw_cpu_write(mmp_deferral.next, small + gap);
	if (gap && !other)
		mmp_answer_ahead(gap, MMP_DEFERRED);
}
