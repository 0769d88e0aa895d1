/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Credit: a bound on the memory that folios of 16 and 32 kB may waste in a
 * process. In sparsely used memory, such as five of each sixteen pages, most 16
 * kB groups look fully used, yet many folios allocated next to them are never
 * filled. So each wasted group or block that adaptive finds costs credit, and
 * each folio of 64 kB or more earns some. A process without credit gets no
 * folios of 16 and 32 kB. Each fault whose neighbourhood is examined then earns
 * 1, so the policy tries small folios again later.
 *
 * Each CPU keeps its own credit, and resets it when another process faults
 * there. As in defer.h, the raw_cpu operations are enough.
 */
#ifndef MMPOLICY_WASTE_H
#define MMPOLICY_WASTE_H

#include <linux/minmax.h>
#include <linux/percpu.h>

#include "anon_order.h"
#include "entries.h"

/*
 * credit (for folios of 16 and 32 kB) of a process whose first fault a CPU
 * examines
 */
#define MMP_CREDIT_FIRST	128
#define MMP_CREDIT_MOST		256
#define MMP_CREDIT_LEAST	(-128)
/*
 * Credit that a process loses for a 16 kB group that is fully present but not
 * fully used.
 */
#define MMP_WASTED_GROUP	14
/*
 * Credit lost for such a 64 kB block; it is less, because blocks are examined
 * more often than groups.
 */
#define MMP_WASTED_BLOCK	8

/**
 * struct mmp_credit - credit of one process on one CPU
 * @mm: the process; only compared, never dereferenced
 * @left: remaining credit; below 0 after too much waste
 */
struct mmp_credit {
	const struct mm_struct *mm;
	int left;
};

DECLARE_PER_CPU(struct mmp_credit, mmp_credit);

/*
 * Resets the credit (for folios of 16 and 32 kB) to MMP_CREDIT_FIRST if the
 * last fault that this CPU examined was of another process.
 */
static inline void mmp_credit_begin(const struct mm_struct *mm)
{
	if (likely(raw_cpu_read(mmp_credit.mm) == mm))
		return;
	raw_cpu_write(mmp_credit.mm, mm);
	raw_cpu_write(mmp_credit.left, MMP_CREDIT_FIRST);
}

static inline void mmp_credit_add(int credit)
{
	credit += raw_cpu_read(mmp_credit.left);
	raw_cpu_write(mmp_credit.left, clamp(credit, MMP_CREDIT_LEAST, MMP_CREDIT_MOST));
}

/*
 * Adds credit for a folio of @order that @mm gets, if it has 64 kB or more: the
 * policy requests these orders only next to a fully used block.
 */
static __always_inline void mmp_credit_earn(const struct mm_struct *mm, unsigned int order)
{
	if (order < BLOCK_ORDER)
		return;
	mmp_credit_begin(mm);
	mmp_credit_add(BLOCK);
}

/*
 * If the 16 kB group or 64 kB block at @pte is fully present but not fully
 * used, lowers the credit of the process. Returns @page, the state of the group
 * or block, unchanged.
 */
static __always_inline enum mmp_page mmp_waste_seen(enum mmp_page page, const pte_t *pte,
						    unsigned int order)
{
	const bool group = order == GROUP_ORDER;

	if (page == MMP_MAPPED && mmp_bits_present(group ? group_bits(pte) : block_bits(pte)))
		mmp_credit_add(group ? -MMP_WASTED_GROUP : -MMP_WASTED_BLOCK);
	return page;
}

/*
 * Returns true if the process has credit left for folios of 16 and 32 kB.
 * Without credit, this call earns 1.
 */
static inline bool mmp_credit_left(void)
{
	if (likely(raw_cpu_read(mmp_credit.left) >= 0))
		return true;
	mmp_credit_add(1);
	return raw_cpu_read(mmp_credit.left) >= 0;
}

#endif /* MMPOLICY_WASTE_H */
