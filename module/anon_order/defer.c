// SPDX-License-Identifier: GPL-2.0
#include "defer.h"

/* A 16th of the small folios that there were is passed over, but no more than this. */
#define SHIFT	4
#define MOST	64U
/* Within memory that is there, up to so many are looked at: where one fits is not far. */
#define RETRY	8U

DEFINE_PER_CPU(struct mmp_deferral, mmp_deferral);

/**
 * mmp_defer_until - which fault is looked at next
 * @mm: the process of this one, which gets a small folio
 * @inside: because it is within memory that is there
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
