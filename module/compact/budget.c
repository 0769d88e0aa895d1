// SPDX-License-Identifier: GPL-2.0
/*
 * compact/budget: direct compaction as long as its results are worth the pages
 * that it scans.
 *
 * A profile has an account for each order in each zone: the number of pages
 * scanned without a result. An attempt adds the pages that it has scanned, a
 * success subtracts scan_per_page for each page of the allocated folio, and
 * each millisecond subtracts scan_per_ms. While the account exceeds
 * scan_ahead_percent of the zone, the zone is skipped. So the length of a pause
 * follows the cost of the attempts. The deferral of mm itself, which stays in
 * force, only counts attempts.
 *
 * If much memory has become free since the last attempt, the account is out of
 * date: it is emptied, and a deferral ends.
 *
 * Scans of other profiles are not on the account. So when one profile, such as
 * an arm of an experiment, scans much, zones are not skipped for another.
 */
#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/mmzone.h>

#include "compact.h"
#include "../mmpolicy.h"

#define ZONE	"percent of the zone's pages"

enum { SCAN_AHEAD_PERCENT, SCAN_PER_PAGE, SCAN_PER_MS, FORGET_FREED_PERCENT };

static struct mmp_knob knobs[] = {
	[SCAN_AHEAD_PERCENT] =
		MMP_KNOB(scan_ahead_percent, 1, 1000, 100, ZONE,
			 "the zone is skipped after scanning more without a result"),
	[SCAN_PER_PAGE] =
		MMP_KNOB(scan_per_page, 1, 10000, 64, "pages scanned per page",
			 "scanned pages taken off the account per page allocated"),
	[SCAN_PER_MS] =
		MMP_KNOB(scan_per_ms, 0, 10000, 20, "pages scanned per millisecond",
			 "scanned pages taken off the account over time; 0: none"),
	[FORGET_FREED_PERCENT] =
		MMP_KNOB(forget_freed_percent, 1, 100, 2, ZONE,
			 "the account is emptied when this much became free; 100: never"),
};

static unsigned int era = 1;

static struct mmp_account *budget_account_of(const struct mmp_attempt *attempt)
{
	struct mmp_accounts *node = &attempt->nodes[zone_to_nid(attempt->zone)];
	bool movable = attempt->gfp & __GFP_MOVABLE;

	return &node->of[zone_idx(attempt->zone)][attempt->order][movable];
}

/*
 * Returns the scanned pages on the account as of the last attempt; the credit
 * for the time since then is not subtracted. Returns 0 for an account of an
 * earlier era, as mmp_compact_budget_forget() has emptied it.
 */
static u64 budget_booked(const struct mmp_account *account)
{
	bool is_old = READ_ONCE(account->era) != READ_ONCE(era);

	return is_old ? 0 : READ_ONCE(account->scanned);
}

static u64 budget_percent_of(struct zone *zone, u32 percent)
{
	return (u64)zone_managed_pages(zone) * percent / 100;
}

/*
 * Returns true if so much memory has become free since the last attempt that
 * another one may succeed.
 */
static bool budget_has_changed(const struct mmp_account *account, struct zone *zone,
			       const u32 *knob)
{
	unsigned long free = zone_page_state(zone, NR_FREE_PAGES);
	u64 much = budget_percent_of(zone, knob[FORGET_FREED_PERCENT]);

	return budget_booked(account) && free > READ_ONCE(account->free) + much;
}

static u64 budget_less(u64 pages, u64 by)
{
	return pages - min(pages, by);
}

/*
 * Returns the pages on the account, less the credit for the time since the last
 * attempt.
 */
static u64 budget_balance(const struct mmp_account *account, const u32 *knob)
{
	long passed = jiffies - READ_ONCE(account->when);
	u64 ms = jiffies_to_msecs(max(passed, 0L));

	return budget_less(budget_booked(account), ms * knob[SCAN_PER_MS]);
}

static enum mm_policy_compact compact_budget(const struct mmp_attempt *attempt,
					     const u32 *knob)
{
	const struct mmp_account *account = budget_account_of(attempt);
	bool deferred = attempt->stock == MM_POLICY_DEFER;

	if (budget_has_changed(account, attempt->zone, knob))
		return deferred ? MM_POLICY_TRY_ALL : MM_POLICY_TRY;
	if (budget_balance(account, knob) >
	    budget_percent_of(attempt->zone, knob[SCAN_AHEAD_PERCENT]))
		return MM_POLICY_DEFER;
	return attempt->stock;
}

static void compact_budget_done(const struct mmp_attempt *attempt, bool success,
				unsigned long scanned, const u32 *knob)
{
	struct mmp_account *account = budget_account_of(attempt);
	struct zone *zone = attempt->zone;
	u64 worth = success ? (u64)knob[SCAN_PER_PAGE] << attempt->order : 0;
	u64 old;

	old = budget_has_changed(account, zone, knob) ? 0 : budget_balance(account, knob);
	WRITE_ONCE(account->scanned, budget_less(old + scanned, worth));
	WRITE_ONCE(account->free, zone_page_state(zone, NR_FREE_PAGES));
	WRITE_ONCE(account->when, jiffies);
	WRITE_ONCE(account->era, READ_ONCE(era));
}

/**
 * mmp_compact_budget_forget - empty the accounts of all profiles
 *
 * Context: calls are serialised by the caller.
 */
void mmp_compact_budget_forget(void)
{
	WRITE_ONCE(era, era + 1);
}

struct mmp_policy mmp_policy_compact_budget = {
	.name = "budget",
	.point = MM_POLICY_COMPACT,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.compact_try = compact_budget,
	.compact_done = compact_budget_done,
};
