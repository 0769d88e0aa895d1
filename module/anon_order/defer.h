/* SPDX-License-Identifier: GPL-2.0 */
/*
 * When adaptive does not look around a fault. In a process whose last faults all got
 * small folios, the next one will most likely get one too. Then it looks at fewer and
 * fewer of them, and at each again as soon as one gets a large folio. Compaction is
 * deferred in a similar way (compaction_deferred() in mm/compaction.c).
 *
 * Each CPU counts for itself, and begins anew when another process comes. A task that
 * moves to another CPU in between only counts wrong.
 */
#ifndef MMPOLICY_DEFER_H
#define MMPOLICY_DEFER_H

#include <linux/percpu.h>

#include "ahead.h"

/* Deferring begins after so many small folios in a row. */
#define MMP_DEFER_AFTER		256U
/* Up to so many small folios in a row, a large folio does not have to end anything. */
#define MMP_DEFER_FEW		64U

/**
 * struct mmp_deferral - of one CPU
 * @deferred: the process that is not looked at, or NULL; only compared
 * @last: the process of the last small folio; only compared
 * @small: its small folios in a row; after a large one it is not always 0
 * @next: the value of @small at which @deferred is looked at again
 */
struct mmp_deferral {
	const struct mm_struct *deferred;
	const struct mm_struct *last;
	u32 small;
	u32 next;
};

DECLARE_PER_CPU(struct mmp_deferral, mmp_deferral);

u32 mmp_ahead_take(enum mmp_reason *reason);
void mmp_defer_until(const struct mm_struct *mm, bool inside);

/**
 * mmp_defer_sooner - a fault that was looked at gets a small folio
 * @mm: its process
 * @inside: the reason is that no folio fits around the fault
 */
static __always_inline void mmp_defer_sooner(const struct mm_struct *mm, bool inside)
{
	this_cpu_inc(mmp_deferral.small);
	if (unlikely(this_cpu_read(mmp_deferral.last) != mm ||
		     this_cpu_read(mmp_deferral.small) > MMP_DEFER_AFTER))
		mmp_defer_until(mm, inside);
}

/**
 * mmp_deferred - is this fault passed over? It counts itself then
 * @mm: its process
 */
static __always_inline bool mmp_deferred(const struct mm_struct *mm)
{
	if (likely(this_cpu_read(mmp_deferral.deferred) != mm) ||
	    this_cpu_read(mmp_deferral.small) >= this_cpu_read(mmp_deferral.next))
		return false;
	this_cpu_inc(mmp_deferral.small);
	return true;
}

/**
 * mmp_many_small - did so many small folios come before that a large one is news?
 */
static __always_inline bool mmp_many_small(void)
{
	return unlikely(this_cpu_read(mmp_deferral.small) > MMP_DEFER_FEW);
}

/**
 * mmp_defer_later - a fault gets a large folio
 * @order: order of the folio
 *
 * The next faults are looked at again: 128 after 64 kB, 32 after 16 kB. If none of these
 * looks finds an example, they cost about as much as a folio saves.
 */
static __always_inline void mmp_defer_later(unsigned int order)
{
	const u32 small = MMP_DEFER_AFTER - min(MMP_DEFER_AFTER, 8U << order);

	this_cpu_write(mmp_deferral.deferred, NULL);
	this_cpu_write(mmp_deferral.small, min(small, this_cpu_read(mmp_deferral.small)));
}

#endif /* MMPOLICY_DEFER_H */
