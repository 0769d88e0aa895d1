/* SPDX-License-Identifier: GPL-2.0 */
/* What the policies of the point compact share. */
#ifndef MMPOLICY_COMPACT_H
#define MMPOLICY_COMPACT_H

#include <linux/gfp.h>
#include <linux/mmzone.h>

#include "../compat.h"

/**
 * struct mmp_account - what compaction of a zone has cost in vain
 * @scanned: pages that have brought nothing yet
 * @free: free pages of the zone after the last attempt
 * @when: jiffies then
 * @era: of the accounts, then; what is from an earlier one is forgotten
 *
 * Written by whoever compacts, without a lock: of two attempts at a time one may
 * be forgotten.
 */
struct mmp_account {
	u64 scanned;
	unsigned long free;
	unsigned long when;
	unsigned int era;
};

/**
 * struct mmp_accounts - the accounts of a profile for a node
 * @of: by zone and order; for pages that stay where they are, and for others,
 *	which other blocks will do for
 */
struct mmp_accounts {
	struct mmp_account of[MAX_NR_ZONES][NR_PAGE_ORDERS][2];
};

/**
 * struct mmp_attempt - direct compaction, before it or afterwards
 * @zone: of what
 * @order: for what
 * @gfp: the same
 * @stock: what mm would do by itself; before it alone
 * @nodes: the accounts of the profile that decides, by node
 */
struct mmp_attempt {
	struct zone *zone;
	int order;
	gfp_t gfp;
	enum mm_policy_compact stock;
	struct mmp_accounts *nodes;
};

/* compact/budget.c */
void mmp_compact_budget_forget(void);

#endif /* MMPOLICY_COMPACT_H */
