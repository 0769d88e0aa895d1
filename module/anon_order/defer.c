// SPDX-License-Identifier: GPL-2.0
#include "defer.h"

/* After N small folios in a row the next N/16 faults are passed over, up to MMP_AHEAD_MOST. */
#define SHIFT	4
/* Where no folio fits, only one fault in RETRY passes others over: a fit is not far away. */
#define RETRY	8U

DEFINE_PER_CPU(struct mmp_deferral, mmp_deferral);

/**
 * mmp_ahead_take - take the answers that a policy has given in advance
 * @reason: set to their reason
 *
 * Deferred faults count as small folios now.
 * Context: preemption has been off since the policy was asked.
 * Return: the number of faults.
 */
u32 mmp_ahead_take(enum mmp_reason *reason)
{
	const u32 ahead = this_cpu_read(mmp_ahead), faults = ahead >> MMP_AHEAD_SHIFT;

	this_cpu_write(mmp_ahead, 0);
	*reason = (u8)ahead;
	if (*reason == MMP_DEFERRED)
		this_cpu_add(mmp_deferral.small, faults);
	return faults;
}

/**
 * mmp_defer_until - decide which fault is looked at next
 * @mm: the process of this fault, which gets a small folio
 * @inside: the reason is that no folio fits around the fault
 */
void mmp_defer_until(const struct mm_struct *mm, bool inside)
{
	const u32 small = this_cpu_read(mmp_deferral.small);
	const bool other = this_cpu_read(mmp_deferral.last) != mm;
	const struct mm_struct *deferred = other ? NULL : mm;
	u32 gap = min(small >> SHIFT, MMP_AHEAD_MOST);

	if (inside && small % RETRY)
		gap = 0;
	this_cpu_write(mmp_deferral.deferred, deferred);
	this_cpu_write(mmp_deferral.last, mm);
	if (other)
		this_cpu_write(mmp_deferral.small, 1);
	this_cpu_write(mmp_deferral.next, small + gap);
	if (gap && !other)
		mmp_answer_ahead(gap, MMP_DEFERRED);
}
