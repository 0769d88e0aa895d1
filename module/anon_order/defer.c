// SPDX-License-Identifier: GPL-2.0
#include "defer.h"

/* After N small folios in a row the next N/16 faults are passed over, at most MOST of them. */
#define SHIFT	4
#define MOST	64U
/* Where no folio fits, only one fault in RETRY passes others over: a fit is not far away. */
#define RETRY	8U

DEFINE_PER_CPU(struct mmp_deferral, mmp_deferral);

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
	u32 gap = min(small >> SHIFT, MOST);

	if (inside && small % RETRY)
		gap = 0;
	this_cpu_write(mmp_deferral.deferred, deferred);
	this_cpu_write(mmp_deferral.last, mm);
	if (other)
		this_cpu_write(mmp_deferral.small, 1);
	this_cpu_write(mmp_deferral.next, small + gap);
}
