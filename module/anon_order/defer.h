/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Deferring: in a process whose recent faults all got small folios, the next
 * fault most likely gets one too. So adaptive answers more and more faults with
 * order 0 without reading page tables. It examines every fault again once one
 * gets a large folio. mm defers compaction in a similar way
 * (compaction_deferred() in mm/compaction.c).
 *
 * Each CPU keeps its own state, and resets it when another process faults
 * there. If a task moves to another CPU during an update, only the counts are
 * slightly wrong. So raw_cpu operations are enough. They are cheaper: on arm64,
 * this_cpu operations disable preemption.
 */
#ifndef MMPOLICY_DEFER_H
#define MMPOLICY_DEFER_H

#include <linux/percpu.h>

#include "ahead.h"

/*
 * After this many small folios in a row, adaptive begins to answer faults with
 * order 0 without reading page tables ("deferring").
 */
#define MMP_DEFER_AFTER		256U
/*
 * With at most this many small folios in a row, a large folio need not reset
 * deferring, which begins only after MMP_DEFER_AFTER small folios.
 */
#define MMP_DEFER_FEW		64U

/**
 * struct mmp_deferral - deferring on one CPU
 * @deferred: process whose faults are not examined, or NULL; only compared,
 *	never dereferenced
 * @last: process that got the last small folio; only compared
 * @small: small folios in a row of @last; a large folio lowers it, see
 *	mmp_defer_later()
 * @next: faults of @deferred are examined again once @small reaches this value
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
 * mmp_defer_sooner - count a fault that was examined and gets a small folio
 * @mm: process of the fault
 * @inside: true if memory nearby is used but no folio fits around the fault
 */
static __always_inline void mmp_defer_sooner(const struct mm_struct *mm, bool inside)
{
	raw_cpu_inc(mmp_deferral.small);
	if (unlikely(raw_cpu_read(mmp_deferral.last) != mm ||
		     raw_cpu_read(mmp_deferral.small) > MMP_DEFER_AFTER))
		mmp_defer_until(mm, inside);
}

/**
 * mmp_deferred - test whether to answer a fault without reading page tables
 * @mm: process of the fault
 *
 * Return: true if so; the fault is then counted as one more small folio.
 */
static __always_inline bool mmp_deferred(const struct mm_struct *mm)
{
	if (likely(raw_cpu_read(mmp_deferral.deferred) != mm) ||
	    raw_cpu_read(mmp_deferral.small) >= raw_cpu_read(mmp_deferral.next))
		return false;
	raw_cpu_inc(mmp_deferral.small);
	return true;
}

/**
 * mmp_many_small - test whether so many small folios came before that a large
 * one must reset deferring
 */
static __always_inline bool mmp_many_small(void)
{
	return unlikely(raw_cpu_read(mmp_deferral.small) > MMP_DEFER_FEW);
}

/**
 * mmp_defer_later - reset deferring after a fault that gets a large folio
 * @order: order of the folio
 *
 * The next faults are examined again: 128 faults after a folio of 64 kB, 32
 * after 16 kB. If they find no used memory, examining them costs about as much
 * time as the large folio saved.
 */
static __always_inline void mmp_defer_later(unsigned int order)
{
	const u32 small = MMP_DEFER_AFTER - min(MMP_DEFER_AFTER, 8U << order);

	raw_cpu_write(mmp_deferral.deferred, NULL);
	raw_cpu_write(mmp_deferral.small, min(small, raw_cpu_read(mmp_deferral.small)));
}

#endif /* MMPOLICY_DEFER_H */
