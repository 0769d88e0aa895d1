/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How much small folios may waste in a process. Where memory is used in pieces, such as
 * five pages of each sixteen, or one cluster here and another there, most examples of 16 kB
 * look full, and a part of the folios that follow them is never used. So waste that a look
 * shows costs credit, and folios of full blocks earn some. Without credit, there are no small
 * folios; each look then earns a little, as otherwise nothing would ever be tried again.
 *
 * Each CPU counts for itself, and begins anew when another process comes.
 */
#ifndef MMPOLICY_WASTE_H
#define MMPOLICY_WASTE_H

#include <linux/minmax.h>
#include <linux/percpu.h>

#include "anon_order.h"
#include "entries.h"

#define MMP_CREDIT_FIRST	128	/* of a process that a CPU has not just seen */
#define MMP_CREDIT_MOST		256
#define MMP_CREDIT_LEAST	(-128)
/* Credit lost for a group, or a block, that is all present and not all used. */
#define MMP_WASTED_GROUP	14
#define MMP_WASTED_BLOCK	8	/* less, as a block is seen more often */

/**
 * struct mmp_credit - of one CPU
 * @mm: whose; only compared
 * @left: below 0 where too much was wasted
 */
struct mmp_credit {
	const struct mm_struct *mm;
	int left;
};

DECLARE_PER_CPU(struct mmp_credit, mmp_credit);

/* A CPU looks around a fault of @mm. Another process than before begins with new credit. */
static inline void mmp_credit_begin(const struct mm_struct *mm)
{
	if (likely(this_cpu_read(mmp_credit.mm) == mm))
		return;
	this_cpu_write(mmp_credit.mm, mm);
	this_cpu_write(mmp_credit.left, MMP_CREDIT_FIRST);
}

static inline void mmp_credit_add(int credit)
{
	credit += this_cpu_read(mmp_credit.left);
	this_cpu_write(mmp_credit.left, clamp(credit, MMP_CREDIT_LEAST, MMP_CREDIT_MOST));
}

/* @mm gets a folio of @order. If it is a block or more, a full block was the example. */
static __always_inline void mmp_credit_earn(const struct mm_struct *mm, unsigned int order)
{
	if (order < BLOCK_ORDER)
		return;
	mmp_credit_begin(mm);
	mmp_credit_add(BLOCK);
}

/* Returns @page, the state of the piece at @pte. Takes credit if the piece shows waste. */
static __always_inline enum mmp_page mmp_waste_seen(enum mmp_page page, const pte_t *pte,
						    unsigned int order)
{
	const bool group = order == GROUP_ORDER;

	if (page == MMP_MAPPED && mmp_bits_present(group ? group_bits(pte) : block_bits(pte)))
		mmp_credit_add(group ? -MMP_WASTED_GROUP : -MMP_WASTED_BLOCK);
	return page;
}

/* May the process have folios of 16 and 32 kB? Without credit, this look earns 1. */
static inline bool mmp_credit_left(void)
{
	if (likely(this_cpu_read(mmp_credit.left) >= 0))
		return true;
	mmp_credit_add(1);
	return this_cpu_read(mmp_credit.left) >= 0;
}

#endif /* MMPOLICY_WASTE_H */
