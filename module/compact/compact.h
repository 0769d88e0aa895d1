/* SPDX-License-Identifier: GPL-2.0 */
/* Types shared by the policies of the point compact. */
#ifndef MMPOLICY_COMPACT_H
#define MMPOLICY_COMPACT_H

#include <linux/gfp.h>
#include <linux/mmzone.h>

#include "../compat.h"

/**
 * struct mmp_account - cost of a zone's compaction that had no result
 * @scanned: pages scanned without a result
 * @free: free pages of the zone after the last attempt
 * @when: jiffies at the last attempt
 * @era: value of the counter "era" (budget.c) at the last attempt; an account of an earlier era
 *	counts as empty
 *
 * Tasks that compact write the account without a lock, so one of two concurrent attempts may not
 * be counted.
 */
struct mmp_account {
	u64 scanned;
	unsigned long free;
	unsigned long when;
	unsigned int era;
};

/**
 * struct mmp_accounts - the accounts of a profile for a node
 * @of: accounts by zone, by order, and by whether the allocation is movable,
 *	because movable and unmovable pages use different pageblocks
 */
struct mmp_accounts {
	struct mmp_account of[MAX_NR_ZONES][NR_PAGE_ORDERS][2];
};

/**
 * struct mmp_attempt - an attempt of direct compaction
 * @zone: the zone to compact
 * @order: order of the allocation that needs the compaction
 * @gfp: gfp flags of that allocation
 * @stock: decision of mm itself; valid before the attempt only
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
