// SPDX-License-Identifier: GPL-2.0
/*
 * The policies of bulk, on a simulated zone: the cost of a page depends on the size of the refill,
 * on the moment when the CPU's list of free pages runs empty, on the rest of the zone, and on
 * interrupts.
 */
#include <stdlib.h>

#include "check.h"
#include "policies.h"

#define CALL		250	/* ticks per refill */
#define PAGE		100	/* ticks per page of a refill */
#define EMPTY		60	/* more ticks per page that fills an empty list */
#define SINGLE		450	/* ticks of a refill that gets only one page */

struct zone_sim {
	unsigned int batch;	/* pages that an empty list is filled with; 0: never empty */
	unsigned int left;	/* pages above the watermark; a larger refill gets one page */
	unsigned int slow;	/* pages of a refill after which each costs half more; 0: none */
	unsigned int interrupts; /* mean ticks between two interrupts; 0: none */
	unsigned int list;	/* pages on the CPU's free list */
};

static const struct zone_sim plenty = { .left = 1000 };

static unsigned int refill(struct zone_sim *zone, unsigned int want, u64 *ticks)
{
	unsigned int got = want <= zone->left ? want : 1, i;

	*ticks = got > 1 ? CALL + got * PAGE : SINGLE;
	if (want > 1 && got == 1)
		*ticks += CALL + want / 2;
	if (zone->slow && got > zone->slow)
		*ticks += (got - zone->slow) * PAGE / 2;
	for (i = 0; zone->batch && i < got; i++) {
		if (!zone->list) {
			zone->list = zone->batch;
			*ticks += zone->batch * EMPTY;
		}
		zone->list--;
	}
	if (zone->interrupts && rand() % zone->interrupts < *ticks)
		*ticks += 20000 + rand() % 80000;
	return got;
}

/*
 * Lets the policy choose the size of each refill until @pages pages have come. Returns the mean
 * ticks per page.
 */
static double run(const struct mmp_policy *policy, u32 knob, struct zone_sim zone,
		  unsigned long pages)
{
	unsigned long got = 0;
	double sum = 0;
	u64 ticks;

	while (got < pages) {
		bool timed = false;
		unsigned int want = policy->bulk_pages(0, &knob, &timed);
		unsigned int n = refill(&zone, want, &ticks);

		if (policy == &mmp_policy_bulk_adaptive && knob == 128)
			EXPECT(want == 1 || want == 8 || want == 16 || want == 32 ||
			       want == 64 || want == 128, ==, true);
		got += n;
		sum += ticks;
		if (timed)
			policy->bulk_done(0, want, n, ticks);
	}
	return sum / got;
}

static double adaptive(struct zone_sim zone, unsigned long pages)
{
	return run(&mmp_policy_bulk_adaptive, 128, zone, pages);
}

static double best_fixed(struct zone_sim zone, unsigned long pages)
{
	static const u32 sizes[] = { 1, 8, 16, 32, 64, 128 };
	double best = 0;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		double cost = run(&mmp_policy_bulk_fixed, sizes[i], zone, pages);

		if (!i || cost < best)
			best = cost;
	}
	return best;
}

/* Returns how many pages a policy requests for a refill from node @nid. */
static u32 ask(const struct mmp_policy *policy, u32 knob, int nid)
{
	bool timed;

	return policy->bulk_pages(nid, &knob, &timed);
}

static u32 size_now(void)
{
	return ask(&mmp_policy_bulk_adaptive, 128, 0);
}

TEST(bulk_fixed_is_its_knob)
{
	u32 pages;

	for (pages = 1; pages <= 128; pages++)
		EXPECT(ask(&mmp_policy_bulk_fixed, pages, 0), ==, pages);
}

TEST(bulk_adaptive_starts_as_stock)
{
	EXPECT(size_now(), ==, 64);
}

TEST(bulk_adaptive_keeps_to_its_knob)
{
	u32 most;

	for (most = 1; most <= 128; most++) {
		EXPECT(ask(&mmp_policy_bulk_adaptive, most, 0), <=, most);
		run(&mmp_policy_bulk_adaptive, most, plenty, 10000);
		EXPECT(ask(&mmp_policy_bulk_adaptive, most, 0), <=, most);
	}
}

static const struct {
	const char *name;
	struct zone_sim zone;
} loads[] = {
	{ "steady", { .left = 1000 } },
	{ "steady, with interrupts", { .left = 1000, .interrupts = 1000000 } },
	{ "lists of 63 pages", { .left = 1000, .batch = 63 } },
	{ "lists of 504 pages", { .left = 1000, .batch = 504 } },
	{ "lists of 512 pages", { .left = 1000, .batch = 512 } },
	{ "lists of 2016 pages", { .left = 1000, .batch = 2016, .interrupts = 1000000 } },
	{ "caches that hold 32", { .left = 1000, .slow = 32 } },
	{ "caches that hold 8", { .left = 1000, .slow = 8, .interrupts = 1000000 } },
	{ "a zone with 100 pages left", { .left = 100 } },
	{ "a zone with 40 pages left", { .left = 40, .interrupts = 1000000 } },
	{ "a zone with 10 pages left", { .left = 10, .batch = 63 } },
	{ "a zone with no page left", { .left = 0, .interrupts = 1000000 } },
};

/*
 * Runs all loads in turn, so each begins with the size that the load before has
 * left.
 */
TEST(bulk_adaptive_is_near_the_best_size)
{
	unsigned int i, seed;

	for (seed = 1; seed <= 4; seed++)
		for (i = 0; i < ARRAY_SIZE(loads); i++) {
			const struct zone_sim *zone = &loads[i].zone;

			at("%s, seed %u", loads[i].name, seed);
			srand(seed);
			adaptive(*zone, 300000);
			EXPECT(adaptive(*zone, 2000000), <=,
			       1.04 * best_fixed(*zone, 2000000));
		}
}

/*
 * In a zone without free pages, a request for several pages gets only one and is expensive, so the
 * policy must soon go down to one page.
 */
TEST(bulk_adaptive_follows_a_zone_that_runs_out)
{
	const struct zone_sim none = { .left = 0 };
	int i;

	for (i = 0; i < 10; i++) {
		adaptive(plenty, 1000000);
		EXPECT(size_now(), >=, 64);
		EXPECT(adaptive(none, 20000), <=, 1.03 * best_fixed(none, 20000));
		EXPECT(size_now(), ==, 1);
	}
}

/*
 * Returns the number of refills until the policy requests at most @few pages,
 * if each page beyond @few costs @beyond ticks more.
 */
static unsigned int refills_until(unsigned int few, u64 ticks, u64 beyond)
{
	unsigned int n, want;
	bool timed;
	u32 knob = 128;

	for (n = 0; n < 100000; n++) {
		timed = false;
		want = mmp_policy_bulk_adaptive.bulk_pages(0, &knob, &timed);
		if (want <= few)
			break;
		if (timed)
			mmp_policy_bulk_adaptive.bulk_done(0, want, want,
				want * ticks + (want > few ? (want - few) * beyond : 0));
	}
	return n;
}

/*
 * If the cost of a page more than doubles, and pages beyond the eighth cost even
 * more, the policy soon goes down to eight pages.
 */
TEST(bulk_adaptive_notices_another_load)
{
	int i;

	for (i = 0; i < 4; i++) {
		adaptive(plenty, 3000000);
		EXPECT(size_now(), >=, 64);
		at("time %d", i);
		/*
		 * With a nap after each block, this would take about 2000
		 * refills.
		 */
		EXPECT(refills_until(8, 200, 2000), <, 1600);
	}
}

/*
 * Timed refills between two naps (runs of untimed refills) form whole blocks: 128 pages, or 16
 * refills if these return fewer.
 */
TEST(bulk_adaptive_times_whole_blocks)
{
	static const struct {
		u32 most;
		unsigned int refills;
	} cases[] = { { 1, 16 }, { 8, 16 }, { 64, 2 } };
	unsigned int i, n, in_a_row, naps;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		u32 knob = cases[i].most;

		adaptive(plenty, 3000000);
		at("at most %u pages", knob);
		for (n = 0, naps = 0, in_a_row = 0; n < 10000; n++) {
			bool timed = false;
			u32 want = mmp_policy_bulk_adaptive.bulk_pages(0, &knob, &timed);

			if (timed) {
				in_a_row++;
				mmp_policy_bulk_adaptive.bulk_done(0, want, want, want * PAGE);
			} else if (in_a_row) {
				if (naps++)	/* the first run may end a block begun earlier */
					EXPECT(in_a_row % cases[i].refills, ==, 0);
				in_a_row = 0;
			}
		}
		EXPECT(naps, >, 5);
	}
}

/*
 * The size of a refill stays within its bounds even if refills return no page, or if the clock
 * stands still or jumps.
 */
TEST(bulk_adaptive_survives_nonsense)
{
	u64 ticks;
	int i;

	for (i = 0; i < 1000000; i++) {
		u32 want = size_now();

		ticks = i & 1 ? (u64)-1 >> (i % 64) : 0;
		mmp_policy_bulk_adaptive.bulk_done(0, want, rand() % (want + 1), ticks);
		EXPECT(want, <=, 128);
	}
}

/*
 * Refills from remote nodes do not change the size of refills from the local node, and vice versa.
 */
TEST(bulk_adaptive_tells_nodes_apart)
{
	adaptive((struct zone_sim){ .left = 0 }, 20000);
	EXPECT(size_now(), ==, 1);
	EXPECT(ask(&mmp_policy_bulk_adaptive, 128, -1), ==, 1);
	EXPECT(ask(&mmp_policy_bulk_adaptive, 128, 1), ==, 64);
}
