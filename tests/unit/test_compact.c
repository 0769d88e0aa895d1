// SPDX-License-Identifier: GPL-2.0
/*
 * The policies of compact, on a simulated zone: some blocks become free when
 * their pages are migrated, others never do. An attempt begins where the last
 * one ended, and ends at the next block that can become free, or at the end of
 * the zone. Deferral works as in mm.
 */
#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/mmzone.h>
#include <string.h>

#include "check.h"
#include "compact/compact.h"
#include "policies.h"

#define BLOCK		512UL
#define BLOCKS		512UL
#define ORDER		9
#define MAX_SHIFT	6U

enum { SCAN_AHEAD_PERCENT, SCAN_PER_PAGE, SCAN_PER_MS, FORGET_FREED_PERCENT };

#define NODES		2

unsigned long jiffies;

struct zone_sim {
	struct zone zone;
	const struct mmp_policy *policy;	/* NULL: stock */
	struct mmp_accounts nodes[NODES];
	u32 knob[4];
	bool movable[BLOCKS];
	unsigned long next;
	unsigned long tries, attempts, scanned, got;
};

static void sim_zone(struct zone_sim *sim, const struct mmp_policy *policy)
{
	unsigned int i;

	*sim = (struct zone_sim){
		.zone = { .managed = BLOCK * BLOCKS, .free = BLOCK * BLOCKS / 3 },
		.policy = policy,
	};
	for (i = 0; policy && i < policy->nr_knobs; i++)
		sim->knob[i] = policy->knobs[i].def;
}

/* Makes one of @every blocks movable, so it can become free. */
static void make_movable(struct zone_sim *sim, unsigned long every)
{
	unsigned long i;

	for (i = 0; i < BLOCKS; i += every)
		sim->movable[i] = true;
}

static bool is_deferred(struct zone *zone)
{
	return ++zone->compact_considered < 1U << zone->compact_defer_shift;
}

static void defer(struct zone *zone, bool success)
{
	zone->compact_considered = 0;
	zone->compact_defer_shift = success ? 0 : min(zone->compact_defer_shift + 1, MAX_SHIFT);
}

static bool compact(struct zone_sim *sim, unsigned long *scanned)
{
	unsigned long begin = sim->next;

	for (; sim->next < BLOCKS; sim->next++)
		if (sim->movable[sim->next]) {
			sim->movable[sim->next] = false;
			*scanned = (sim->next - begin + 2) * BLOCK;
			return true;
		}
	sim->next = 0;
	*scanned = (BLOCKS - begin + 1) * BLOCK;
	return false;
}

static enum mm_policy_compact answer_about(struct zone_sim *sim, struct zone *zone, int order,
					   gfp_t gfp, bool deferred)
{
	const struct mmp_attempt attempt = {
		.zone = zone, .order = order, .gfp = gfp, .nodes = sim->nodes,
		.stock = deferred ? MM_POLICY_DEFER : MM_POLICY_TRY,
	};

	return sim->policy ? sim->policy->compact_try(&attempt, sim->knob) : attempt.stock;
}

static enum mm_policy_compact answer(struct zone_sim *sim)
{
	sim->tries++;
	return answer_about(sim, &sim->zone, ORDER, __GFP_MOVABLE, is_deferred(&sim->zone));
}

static void attempt(struct zone_sim *sim)
{
	const struct mmp_attempt done = {
		.zone = &sim->zone, .order = ORDER, .gfp = __GFP_MOVABLE, .nodes = sim->nodes,
	};
	unsigned long scanned;
	bool success = compact(sim, &scanned);

	defer(&sim->zone, success);
	if (sim->policy && sim->policy->compact_done)
		sim->policy->compact_done(&done, success, scanned, sim->knob);
	sim->attempts++;
	sim->scanned += scanned;
	sim->got += success;
	if (success)
		sim->zone.free -= BLOCK;
}

/* Makes @n allocations that need compaction, 100 in each jiffy. */
static void allocate(struct zone_sim *sim, unsigned long n)
{
	while (n--) {
		jiffies += !(n % 100);
		if (answer(sim) != MM_POLICY_DEFER)
			attempt(sim);
	}
}

/* Resets the clock, and empties all accounts of the policy budget. */
static void begin(void)
{
	jiffies = 1000;
	mmp_compact_budget_forget();
}

TEST(budget_compacts_as_stock_where_it_pays)
{
	unsigned long every;

	for (every = 1; every <= 32; every *= 2) {
		struct zone_sim stock, budget;

		begin();
		sim_zone(&stock, NULL);
		sim_zone(&budget, &mmp_policy_compact_budget);
		make_movable(&stock, every);
		make_movable(&budget, every);
		allocate(&stock, BLOCKS / every);
		allocate(&budget, BLOCKS / every);
		at("every %lu blocks", every);
		EXPECT(budget.got, ==, BLOCKS / every);
		EXPECT(budget.got, ==, stock.got);
		EXPECT(budget.scanned, ==, stock.scanned);
	}
}

TEST(budget_stops_where_nothing_can_be_compacted)
{
	struct zone_sim stock, budget;

	begin();
	sim_zone(&stock, NULL);
	sim_zone(&budget, &mmp_policy_compact_budget);
	allocate(&stock, 10000);
	allocate(&budget, 10000);
	EXPECT(budget.attempts, >, 0);
	EXPECT(budget.scanned, <=, 0.1 * stock.scanned);
}

TEST(budget_stops_after_success_has_ended)
{
	struct zone_sim stock, budget;

	begin();
	sim_zone(&stock, NULL);
	sim_zone(&budget, &mmp_policy_compact_budget);
	make_movable(&stock, 8);
	make_movable(&budget, 8);
	allocate(&stock, 10000);
	allocate(&budget, 10000);
	EXPECT(budget.got, ==, stock.got);
	EXPECT(budget.scanned, <=, 0.2 * stock.scanned);
}

/* Allocates until budget has scanned so many pages without a result that it skips the zone. */
static void exhaust(struct zone_sim *sim)
{
	begin();
	sim_zone(sim, &mmp_policy_compact_budget);
	sim->knob[SCAN_PER_MS] = 0;
	allocate(sim, 1000);
	sim->attempts = 0;
	allocate(sim, 1000);
	EXPECT(sim->attempts, ==, 0);
}

TEST(budget_probes_when_memory_becomes_free)
{
	struct zone_sim sim;

	exhaust(&sim);
	sim.zone.free += sim.zone.managed * sim.knob[FORGET_FREED_PERCENT] / 100;
	allocate(&sim, 100);
	EXPECT(sim.attempts, ==, 0);
	sim.zone.free++;
	make_movable(&sim, 1);
	allocate(&sim, BLOCKS);
	EXPECT(sim.got, ==, BLOCKS);
}

/*
 * If memory becomes free, budget compacts at once, even while mm defers
 * compaction; stock waits until the deferral ends.
 */
TEST(budget_ends_a_deferral_when_memory_becomes_free)
{
	struct zone_sim stock, sim;

	exhaust(&sim);
	stock = sim;
	stock.policy = NULL;
	sim.zone.compact_defer_shift = MAX_SHIFT;
	sim.zone.compact_considered = 0;
	stock.zone = sim.zone;
	sim.zone.free += sim.zone.managed / 10;
	EXPECT(answer(&stock), ==, MM_POLICY_DEFER);
	EXPECT(answer(&sim), ==, MM_POLICY_TRY_ALL);
}

TEST(budget_ignores_memory_that_is_used)
{
	struct zone_sim sim;

	exhaust(&sim);
	sim.zone.free /= 2;
	allocate(&sim, 1000);
	EXPECT(sim.attempts, ==, 0);
}

TEST(budget_probes_as_time_goes_by)
{
	struct zone_sim sim;

	exhaust(&sim);
	sim.knob[SCAN_PER_MS] = 20;
	jiffies += sim.zone.managed / 20;
	make_movable(&sim, 1);
	allocate(&sim, BLOCKS);
	EXPECT(sim.got, ==, BLOCKS);
}

/*
 * At the limit the policy tries. Above it, the policy waits until enough time
 * has passed; a clock that goes back counts as no time.
 */
TEST(budget_is_exact)
{
	struct zone_sim sim;
	unsigned long more;

	for (more = 0; more < 2; more++) {
		const struct mmp_attempt done = {
			.zone = &sim.zone, .order = ORDER, .gfp = __GFP_MOVABLE, .nodes = sim.nodes,
		};

		begin();
		sim_zone(&sim, &mmp_policy_compact_budget);
		sim.knob[SCAN_PER_MS] = 1;
		sim.policy->compact_done(&done, false, sim.zone.managed + more, sim.knob);
		at("%lu pages above the limit", more);
		EXPECT(answer(&sim), ==, more ? MM_POLICY_DEFER : MM_POLICY_TRY);
		jiffies -= 5;
		EXPECT(answer(&sim), ==, more ? MM_POLICY_DEFER : MM_POLICY_TRY);
		jiffies += 6;
		EXPECT(answer(&sim), ==, MM_POLICY_TRY);
	}
}

/* In the long run, scan_per_ms bounds the pages scanned without a result. */
TEST(budget_keeps_to_its_rate)
{
	struct zone_sim sim;
	unsigned long start, ms;

	exhaust(&sim);
	sim.knob[SCAN_PER_MS] = 20;
	sim.scanned = 0;
	start = jiffies;
	allocate(&sim, 10000000);
	ms = jiffies_to_msecs(jiffies - start);
	EXPECT(sim.scanned, <=, 20 * ms + 2 * sim.zone.managed);
	EXPECT(sim.scanned, >=, 20 * ms / 2);
}

/*
 * A successful attempt at the last priority lowers the account, too, although the policy is not
 * asked about it.
 */
TEST(budget_learns_from_every_attempt)
{
	struct zone_sim sim;
	unsigned int i;

	exhaust(&sim);
	make_movable(&sim, 1);
	for (i = 0; i < 100; i++)
		attempt(&sim);
	allocate(&sim, 100);
	EXPECT(sim.got, ==, 200);
}

TEST(budget_keeps_an_account_for_each_zone_order_and_kind)
{
	struct zone_sim sim;
	struct zone other;

	exhaust(&sim);
	other = sim.zone;
	EXPECT(answer_about(&sim, &other, ORDER, __GFP_MOVABLE, false), ==, MM_POLICY_DEFER);
	EXPECT(answer_about(&sim, &other, ORDER - 1, __GFP_MOVABLE, false), ==, MM_POLICY_TRY);
	EXPECT(answer_about(&sim, &other, ORDER, 0, false), ==, MM_POLICY_TRY);
	other.idx = 1;
	EXPECT(answer_about(&sim, &other, ORDER, __GFP_MOVABLE, false), ==, MM_POLICY_TRY);
	other.idx = 0;
	other.nid = 1;
	EXPECT(answer_about(&sim, &other, ORDER, __GFP_MOVABLE, false), ==, MM_POLICY_TRY);
}

/* Scans of one profile without a result do not hold back another profile. */
TEST(budget_keeps_the_accounts_of_profiles_apart)
{
	struct zone_sim one, other;

	exhaust(&one);
	sim_zone(&other, &mmp_policy_compact_budget);
	EXPECT(answer_about(&one, &one.zone, ORDER, __GFP_MOVABLE, false), ==, MM_POLICY_DEFER);
	EXPECT(answer_about(&other, &one.zone, ORDER, __GFP_MOVABLE, false), ==, MM_POLICY_TRY);
}

TEST(budget_skips_what_mm_skips)
{
	struct zone_sim sim;

	begin();
	sim_zone(&sim, &mmp_policy_compact_budget);
	EXPECT(answer_about(&sim, &sim.zone, ORDER, 0, true), ==, MM_POLICY_DEFER);
	EXPECT(answer_about(&sim, &sim.zone, ORDER, 0, false), ==, MM_POLICY_TRY);
}

/* Turning the point compact off and on empties the accounts of the policy budget. */
TEST(budget_forgets)
{
	struct zone_sim sim;

	exhaust(&sim);
	begin();
	EXPECT(answer(&sim), ==, MM_POLICY_TRY);
	allocate(&sim, 1000);
	EXPECT(sim.attempts, >, 0);
}

/* No policy writes to fields of struct zone, as they belong to mm. */
TEST(zones_are_left_alone)
{
	struct zone_sim sim;
	struct zone before;
	int i;

	for (i = 0; i < 2; i++) {
		exhaust(&sim);
		sim.policy = i ? &mmp_policy_compact_eager : &mmp_policy_compact_budget;
		sim.knob[0] = 1;
		sim.zone.free += sim.zone.managed / 10;
		before = sim.zone;
		EXPECT(answer_about(&sim, &sim.zone, ORDER, __GFP_MOVABLE, true), ==,
		       MM_POLICY_TRY_ALL);
		EXPECT(memcmp(&before, &sim.zone, sizeof(before)), ==, 0);
	}
}

/*
 * If the zone was not deferred, budget does not ask for a scan of all blocks
 * (TRY_ALL).
 */
TEST(budget_tries_as_stock_where_nothing_was_deferred)
{
	struct zone_sim sim;

	exhaust(&sim);
	sim.knob[SCAN_AHEAD_PERCENT] = 1;
	EXPECT(answer_about(&sim, &sim.zone, ORDER, __GFP_MOVABLE, false), ==, MM_POLICY_DEFER);
	sim.zone.free += sim.zone.managed / 10;
	EXPECT(answer_about(&sim, &sim.zone, ORDER, __GFP_MOVABLE, false), ==, MM_POLICY_TRY);
}

/* No account overflows with extreme knobs, a zone of 4 PB and a clock that wraps. */
TEST(budget_bears_extremes)
{
	unsigned int extreme, i;

	for (extreme = 0; extreme < 16; extreme++) {
		struct zone_sim sim;

		begin();
		sim_zone(&sim, &mmp_policy_compact_budget);
		for (i = 0; i < sim.policy->nr_knobs; i++)
			sim.knob[i] = extreme >> i & 1 ? sim.policy->knobs[i].max :
							 sim.policy->knobs[i].min;
		sim.zone.managed = 1UL << 40;
		jiffies = -50UL;
		allocate(&sim, 10000);
		at("extreme %u", extreme);
		EXPECT(sim.attempts, >, 0);
	}
}

TEST(eager_never_skips)
{
	struct zone_sim sim;

	sim_zone(&sim, &mmp_policy_compact_eager);
	allocate(&sim, 1000);
	EXPECT(sim.attempts, ==, 1000);
}

/* One in restart_attempts attempts that mm would have deferred scans all blocks. */
TEST(eager_looks_at_all_blocks_now_and_then)
{
	struct zone_sim sim;
	unsigned int i, all = 0;

	sim_zone(&sim, &mmp_policy_compact_eager);
	sim.knob[0] = 10;
	for (i = 0; i < 20000; i++) {
		enum mm_policy_compact said = answer_about(&sim, &sim.zone, ORDER, 0, i % 2);

		EXPECT(said, >, MM_POLICY_DEFER);
		all += said == MM_POLICY_TRY_ALL;
	}
	EXPECT(all, >, 800);
	EXPECT(all, <, 1200);
}
