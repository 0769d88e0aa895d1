// SPDX-License-Identifier: GPL-2.0
/* The point compact: decides whether direct compaction is worth an attempt. */
#include <linux/mmzone.h>
#include <linux/string.h>

#include "../sense/stall.h"
#include "../sense/fault_time.h"
#include "../sense/whose.h"
#include "../trace.h"
#include "compact.h"

enum {
	STOCK,
	SKIPPED,
	SKIPPED_UNDEFERRED,
	TRIED_DEFERRED,
	TRIED_ALL,
	ATTEMPTS,
	SUCCESS,
	FAILURE,
	UNSCANNED,
	MIGRATE_SCANNED,
	FREE_SCANNED,
	STALL,
};

static const char *const counters[] = {
	[STOCK] = "stock",
	[SKIPPED] = "skipped",
	[SKIPPED_UNDEFERRED] = "skipped_undeferred",
	[TRIED_DEFERRED] = "tried_deferred",
	[TRIED_ALL] = "tried_all",
	[ATTEMPTS] = "attempts",
	[SUCCESS] = "success",
	[FAILURE] = "failure",
	[UNSCANNED] = "unscanned",
	[MIGRATE_SCANNED] = "migrate_scanned",
	[FREE_SCANNED] = "free_scanned",
	MMP_STALL_COUNTERS(STALL),
};

static struct mmp_stamps stamps;

/*
 * Resets old state. Turning the point on empties the accounts of budget.
 * Turning it off clears the start times of attempts that began while it was on
 * and can no longer report their end.
 */
static void compact_switched(bool on)
{
	if (on)
		mmp_compact_budget_forget();
	else
		memset(&stamps, 0, sizeof(stamps));
}

struct mmp_point mmp_point_compact = {
	.name = "compact",
	.counters = counters,
	.nr_counters = ARRAY_SIZE(counters),
	.node_size = sizeof(struct mmp_accounts),
	.switched = compact_switched,
};

static void compact_count(const struct mmp_profile *profile, unsigned int counter, u64 n)
{
	mmp_count(profile, &mmp_point_compact, counter, n);
}

static const struct mmp_policy *compact_policy_of(const struct mmp_settings *settings)
{
	return settings->active[MM_POLICY_COMPACT];
}

static void compact_count_answer(const struct mmp_profile *profile,
				 enum mm_policy_compact answer, bool deferred)
{
	if (answer == MM_POLICY_DEFER) {
		compact_count(profile, SKIPPED, 1);
		if (!deferred)
			compact_count(profile, SKIPPED_UNDEFERRED, 1);
		return;
	}
	if (deferred)
		compact_count(profile, TRIED_DEFERRED, 1);
	if (answer == MM_POLICY_TRY_ALL)
		compact_count(profile, TRIED_ALL, 1);
}

/* Implements &mm_policy_ops.compact_try. */
enum mm_policy_compact mmp_compact_try(struct zone *zone, int order, gfp_t gfp,
				       enum mm_policy_compact stock)
{
	struct mmp_profile *profile = mmp_profile_of(current->mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = compact_policy_of(settings);
	const struct mmp_attempt attempt = {
		zone, order, gfp, stock, profile->nodes[MM_POLICY_COMPACT]
	};
	enum mm_policy_compact answer = stock;

	if (static_branch_unlikely(&mmp_timing))
		mmp_fault_asked(MM_POLICY_COMPACT);
	if (policy)
		answer = policy->compact_try(&attempt,
					     &settings->values[policy->slot]);
	else
		compact_count(profile, STOCK, 1);
	trace_mmpolicy_compact_try(zone_to_nid(zone), zone_idx(zone), order,
				   stock, answer);
	compact_count_answer(profile, answer, stock == MM_POLICY_DEFER);
	if (answer != MM_POLICY_DEFER)
		mmp_stall_begins(&stamps);
	return answer;
}

/* Implements &mm_policy_ops.compact_done. */
void mmp_compact_done(struct zone *zone, int order, gfp_t gfp, bool success,
		      unsigned long migrate_scanned,
		      unsigned long free_scanned)
{
	struct mmp_profile *profile = mmp_profile_of(current->mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = compact_policy_of(settings);
	const struct mmp_attempt attempt = {
		.zone = zone, .order = order, .gfp = gfp,
		.nodes = profile->nodes[MM_POLICY_COMPACT],
	};
	u64 ns = mmp_stall_ends(&stamps);

	trace_mmpolicy_compact_done(zone_to_nid(zone), zone_idx(zone), order,
				    success, migrate_scanned, free_scanned, ns);
	compact_count(profile, ATTEMPTS, 1);
	if (ns)
		mmp_count_stall(profile, &mmp_point_compact, STALL, ns);
	if (!migrate_scanned && !free_scanned) {
		compact_count(profile, UNSCANNED, 1);
		return;
	}
	compact_count(profile, success ? SUCCESS : FAILURE, 1);
	compact_count(profile, MIGRATE_SCANNED, migrate_scanned);
	compact_count(profile, FREE_SCANNED, free_scanned);
	if (policy && policy->compact_done)
		policy->compact_done(&attempt, success,
				     migrate_scanned + free_scanned,
				     &settings->values[policy->slot]);
}
