// SPDX-License-Identifier: GPL-2.0
/*
 * compact/budget: direct compaction as long as it pays for the pages it scans.
 *
 * Each zone has an account for each order: the pages scanned there that have
 * brought nothing yet. An attempt adds what it scans, a success takes off what
 * it is worth, and time takes off something too. While the account is above a
 * limit the zone is left out. So how long that lasts depends on what attempts
 * have cost; deferral, which mm has by itself and which stays, only counts them.
 *
 * When much memory has become free since the last attempt, what was learned does
 * not hold any more: the account is empty then, and a deferral is over.
 */
#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/mmzone.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>

#include "compact.h"
#include "../mmpolicy.h"

enum { SCAN_AHEAD_PERCENT, SCAN_PER_PAGE, SCAN_PER_MS, FORGET_FREED_PERCENT };

static struct mmp_knob knobs[] = {
	/* What may be scanned in vain, in percent of the zone. */
	[SCAN_AHEAD_PERCENT] = MMP_KNOB(scan_ahead_percent, 1, 1000, 100),
	/* What a page of a folio is worth, in pages scanned. */
	[SCAN_PER_PAGE] = MMP_KNOB(scan_per_page, 1, 10000, 64),
	/* What a millisecond takes off the account. 0: nothing. */
	[SCAN_PER_MS] = MMP_KNOB(scan_per_ms, 0, 10000, 20),
	/* The account is emptied where so much of the zone became free. */
	[FORGET_FREED_PERCENT] = MMP_KNOB(forget_freed_percent, 1, 100, 2),
};

/**
 * struct account - what compaction of a zone for an order has cost in vain
 * @scanned: pages that have brought nothing yet
 * @free: free pages of the zone after the last attempt
 * @when: jiffies then
 *
 * Written by whoever compacts, without a lock: of two attempts at a time one may
 * be forgotten.
 */
struct account {
	u64 scanned;
	unsigned long free;
	unsigned long when;
};

struct node_accounts {
	struct account of[MAX_NR_ZONES][NR_PAGE_ORDERS];
};

static struct node_accounts __rcu *nodes;

static struct account *budget_account_of(struct zone *zone, int order)
{
	struct node_accounts *all = rcu_dereference(nodes);

	return all ? &all[zone_to_nid(zone)].of[zone_idx(zone)][order] : NULL;
}

static u64 budget_percent_of(struct zone *zone, u32 percent)
{
	return (u64)zone_managed_pages(zone) * percent / 100;
}

/* Has so much memory become free that another attempt may do better? */
static bool budget_has_changed(const struct account *account, struct zone *zone,
			       const u32 *knob)
{
	unsigned long free = zone_page_state(zone, NR_FREE_PAGES);
	u64 much = budget_percent_of(zone, knob[FORGET_FREED_PERCENT]);

	return READ_ONCE(account->scanned) &&
	       free > READ_ONCE(account->free) + much;
}

static u64 budget_less(u64 pages, u64 by)
{
	return pages - min(pages, by);
}

/* What is left on the account after some time. */
static u64 budget_balance(const struct account *account, const u32 *knob)
{
	long passed = jiffies - READ_ONCE(account->when);
	u64 ms = jiffies_to_msecs(max(passed, 0L));

	return budget_less(READ_ONCE(account->scanned), ms * knob[SCAN_PER_MS]);
}

static bool compact_budget(struct zone *zone, int order, bool deferred, const u32 *knob)
{
	const struct account *account = budget_account_of(zone, order);

	if (!account)
		return deferred;
	if (!budget_has_changed(account, zone, knob))
		return deferred || budget_balance(account, knob) >
				   budget_percent_of(zone, knob[SCAN_AHEAD_PERCENT]);
	if (deferred)
		mmp_end_deferral(zone);
	return false;
}

static void compact_budget_done(struct zone *zone, int order, bool success,
				unsigned long scanned, const u32 *knob)
{
	struct account *account = budget_account_of(zone, order);
	u64 worth = success ? (u64)knob[SCAN_PER_PAGE] << order : 0;
	u64 old;

	if (!account)
		return;
	old = budget_has_changed(account, zone, knob) ? 0 : budget_balance(account, knob);
	WRITE_ONCE(account->scanned, budget_less(old + scanned, worth));
	WRITE_ONCE(account->free, zone_page_state(zone, NR_FREE_PAGES));
	WRITE_ONCE(account->when, jiffies);
}

/* Before the first question: nothing is known yet. */
void mmp_compact_budget_begin(void)
{
	rcu_assign_pointer(nodes, kvcalloc(nr_node_ids, sizeof(*nodes),
					   GFP_KERNEL | __GFP_NOFAIL));
}

/* After the last one, which may still be running. */
void mmp_compact_budget_end(void)
{
	struct node_accounts *old = rcu_replace_pointer(nodes, NULL, true);

	synchronize_rcu();
	kvfree(old);
}

struct mmp_policy mmp_policy_compact_budget = {
	.name = "budget",
	.point = MM_POLICY_COMPACT,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.compact_skip = compact_budget,
	.compact_done = compact_budget_done,
};
