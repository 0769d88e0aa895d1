// SPDX-License-Identifier: GPL-2.0
/*
 * bulk/adaptive: the exact lengths of comparisons and of rests, on pages with a
 * given cost. A block has 128 pages here, whatever the size.
 */
#include <linux/minmax.h>
#include <string.h>

#include "check.h"
#include "policies.h"

#define USUAL		1000	/* ticks per page at the best size */

/*
 * Cost of a page: the usual cost, an extra cost for each size, and a deviation
 * whose sign changes with each block; in ticks divided by @parts.
 */
static struct {
	int usual, more[129], turns[129];
	unsigned int parts;
	/* number of timed refills of each size since the last nap */
	unsigned int refills[129];
} cost;

static int cost_now(u32 size)
{
	const unsigned int block = cost.refills[size]++ / (128 / size);

	return cost.usual + cost.more[size] + (block % 2 ? -1 : 1) * cost.turns[size];
}

static u32 now(bool *timed)
{
	const u32 knob = 128;

	return mmp_policy_bulk_adaptive.bulk_pages(0, &knob, timed);
}

/*
 * Returns the number of blocks timed until the next nap (a run of untimed
 * refills), and checks the length of the nap.
 */
static double timed_blocks(void)
{
	unsigned long pages = 0, naps = 0;
	bool timed;

	memset(cost.refills, 0, sizeof(cost.refills));
	for (;;) {
		u32 size = now(&timed);

		if (!timed)
			break;
		pages += size;
		mmp_policy_bulk_adaptive.bulk_done(0, size, size,
						   size * cost_now(size) / cost.parts);
	}
	do
		naps++;
	while (now(&timed), !timed);
	/*
	 * The last call returned a size for a timed refill, which the next call
	 * of this function makes.
	 */
	EXPECT(naps, ==, 256);
	return pages / 128.0;
}

/*
 * Makes 64 pages the best size: both neighbours cost so much more that ten
 * pairs of blocks show it. Runs long enough that the policy has learned the
 * usual cost.
 */
static void sixty_four_is_best(void)
{
	unsigned int i;

	memset(&cost, 0, sizeof(cost));
	cost.usual = USUAL;
	cost.parts = 1;
	cost.more[32] = cost.more[128] = 300;
	for (i = 0; i < 100; i++)
		timed_blocks();
}

/*
 * Makes 64 pages the best size, with costs in sixteenths of a tick. Each other size costs at least
 * twice as much.
 */
static void sixty_four_is_best_by_sixteenths(int usual)
{
	unsigned int i;

	sixty_four_is_best();
	cost.usual = usual;
	cost.parts = 16;
	for (i = 0; i < 6; i++)
		cost.more[1 << i] = usual * (6 - i);
	cost.more[128] = usual;
	for (i = 0; i < 400; i++)
		timed_blocks();
}

/*
 * After a move to another size, the policy compares that with its neighbour at once. Then it rests
 * for two blocks, for three, and from then on always for five.
 */
TEST(climb_rests_longer_and_longer)
{
	static const unsigned int blocks[] = {
		1, 21, 1, 1, 21, 1, 1, 1, 1, 21, 1, 1, 1, 1, 21, 1, 1, 1, 1, 21,
	};
	unsigned int i;

	sixty_four_is_best();
	cost.more[128] = -300;
	do
		i = timed_blocks();
	while (!cost.refills[128]);
	EXPECT(i, ==, 41);	/* compares 64 with 128, moves, and compares 128 with 64 */
	for (i = 0; i < ARRAY_SIZE(blocks); i++) {
		at("nap %u", i);
		EXPECT(timed_blocks(), ==, blocks[i]);
		EXPECT(!!cost.refills[64], ==, blocks[i] > 1);
	}
}

/* The policy compares its size with the next larger and the next smaller one in turn. */
TEST(climb_compares_with_both_neighbours)
{
	bool larger[10];
	unsigned int i;

	sixty_four_is_best();
	for (i = 0; i < ARRAY_SIZE(larger); i++) {
		while (timed_blocks() == 1)
			;
		larger[i] = cost.refills[128];
		at("comparison %u", i);
		EXPECT(larger[i], ==, !cost.refills[32]);
		EXPECT(larger[i], ==, i ? !larger[i - 1] : larger[i]);
	}
}

/* Returns the number of pairs of blocks in the next comparison with @size. */
static unsigned int pairs_with(u32 size)
{
	double blocks;

	do
		blocks = timed_blocks();
	while (!cost.refills[size]);
	return (blocks - 1) / 2;
}

struct seen {
	double sum, squares;
	unsigned int pairs;
};

/*
 * Computes the expected number of pairs: until the mean difference exceeds
 * three standard errors, and at least ten.
 */
static unsigned int pairs_needed(struct seen *seen, double more, double turns)
{
	unsigned int pairs = 0;

	do {
		const double d = more + (pairs % 2 ? -turns : turns);

		seen->sum += d;
		seen->squares += d * d;
		if (++seen->pairs == 256) {	/* the older half counts less */
			seen->sum /= 2;
			seen->squares /= 2;
			seen->pairs /= 2;
		}
	} while (++pairs < 128 && (seen->pairs < 10 || seen->sum * seen->sum <= 9 * seen->squares));
	return pairs;
}

/*
 * With noise as large as the difference, the sum is exactly at the bound after
 * 17 pairs, not beyond.
 */
TEST(climb_compares_until_it_is_sure)
{
	static const int noise[] = { 0, 80, 100, 114, 150, 190, 220, 250, 300 };
	unsigned int i;

	sixty_four_is_best();
	for (i = 0; i < ARRAY_SIZE(noise); i++) {
		struct seen seen = {};

		at("noise of %d ticks", noise[i]);
		cost.more[128] = 100;
		cost.turns[128] = noise[i];
		EXPECT(pairs_with(128), ==, pairs_needed(&seen, 100, noise[i]));
	}
}

/*
 * After 128 pairs without a decision, a rest follows; the next comparison keeps
 * the measurements.
 */
TEST(climb_remembers_what_it_was_not_sure_of)
{
	struct seen seen = {};
	unsigned int i;

	sixty_four_is_best();
	for (i = 0; i < 5; i++) {
		at("session %u", i);
		cost.more[128] = 2;
		cost.turns[128] = 300;
		EXPECT(pairs_with(128), ==, 128);
		EXPECT(pairs_needed(&seen, 2, 300), ==, 128);
	}
	cost.more[128] = 250;
	cost.turns[128] = 0;
	EXPECT(pairs_with(128), ==, pairs_needed(&seen, 250, 0));
	EXPECT(pairs_with(128), ==, 10);	/* the decision has dropped all measurements */
}

/*
 * A block counts as at most twice the usual cost, even if it costs five times
 * as much.
 */
TEST(climb_outliers_count_as_twice_the_usual)
{
	sixty_four_is_best();
	cost.more[128] = 500;
	cost.turns[128] = 1500;	/* blocks cost 0 and three times the usual in turn */
	EXPECT(pairs_with(128), ==, 128);
}

/*
 * At equal cost (within 1/128), the policy moves to a smaller size, but not to
 * a larger one.
 */
TEST(climb_takes_less_than_a_128th_for_nothing)
{
	static const struct {
		u32 size;
		int more;	/* more ticks than the usual 1000 */
		bool goes;
	} cases[] = {
		{ 128, 0, false }, { 128, -6, false }, { 32, 10, false },
		{ 128, -10, true }, { 64, 6, true }, { 32, 0, true },
	};
	u32 settled = 64;
	unsigned int i, n;
	bool timed;

	sixty_four_is_best();
	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		at("case %u", i);
		for (n = 1; n <= 128; n *= 2)
			cost.more[n] = USUAL;
		cost.more[settled] = 0;
		cost.more[cases[i].size] = cases[i].more;
		memset(cost.turns, 0, sizeof(cost.turns));
		EXPECT(pairs_with(cases[i].size), >=, 10);
		EXPECT(now(&timed), ==, cases[i].goes ? cases[i].size : settled);
		settled = now(&timed);
	}
}

/*
 * A larger size that saves a sixteenth of a tick per page is taken, unless that is less than 1/128
 * of the cost.
 */
TEST(climb_sees_a_sixteenth_of_a_tick)
{
	static const struct {
		int usual;
		bool goes;
	} cases[] = { { 33, true }, { 130, false } };
	unsigned int i;
	bool timed;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		sixty_four_is_best_by_sixteenths(cases[i].usual);
		at("%d sixteenths of a tick", cases[i].usual);
		EXPECT(now(&timed), ==, 64);
		cost.more[128] = -1;
		/* After moving there, it compares with 64 again. */
		EXPECT(pairs_with(128), ==, cases[i].goes ? 20 : 10);
		EXPECT(now(&timed), ==, cases[i].goes ? 128 : 64);
	}
}

/*
 * Under a steady load, a nap (256 untimed refills) follows each block at rest, even if pages cost
 * very little.
 */
TEST(climb_naps_where_pages_cost_little)
{
	unsigned int i;
	double blocks;

	sixty_four_is_best_by_sixteenths(3);
	for (i = 0; i < 20; i++) {
		blocks = timed_blocks();
		at("nap %u", i);
		EXPECT(blocks == 1 || blocks >= 21, ==, true);
	}
}

/*
 * A block at rest that costs less than half of the usual, or more than twice as
 * much, ends without a nap.
 */
TEST(climb_looks_again_after_an_odd_block)
{
	static const struct {
		int percent;
		bool odd;
	} cases[] = { { 180, false }, { 220, true }, { 56, false }, { 45, true }, { 100, false } };
	unsigned int i, n, naps;
	bool timed;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		sixty_four_is_best();
		while (timed_blocks() == 1)	/* so that a rest of five blocks begins */
			;
		for (n = 0; n < 2; n++)
			mmp_policy_bulk_adaptive.bulk_done(0, 64, 64,
				64 * USUAL * cases[i].percent / 100);
		for (naps = 0; now(&timed), !timed; naps++)
			;
		at("%d %% of the usual cost", cases[i].percent);
		EXPECT(naps, ==, cases[i].odd ? 0 : 256);
	}
}

/*
 * If refills return no page, the policy takes a smaller size. It then rests for two blocks instead
 * of five, and times the first of them at once.
 */
TEST(climb_begins_anew_after_a_refusal)
{
	unsigned int i;
	bool timed;

	sixty_four_is_best();
	while (timed_blocks() == 1)
		;
	for (i = 0; i < 16; i++)
		mmp_policy_bulk_adaptive.bulk_done(0, 64, 0, 64 * USUAL);
	EXPECT(now(&timed), ==, 32);
	EXPECT(timed, ==, true);
	cost.more[32] = 0;	/* 32 pages are the best size now; ten pairs show it */
	cost.more[16] = cost.more[64] = 300;
	EXPECT(timed_blocks(), ==, 1);
	EXPECT(timed_blocks(), ==, 21);
}

/*
 * If refills return less than half of the requested pages, the policy takes a
 * smaller size at once; if they return half, it does not.
 */
TEST(climb_goes_down_where_bulks_are_refused)
{
	unsigned int missing, i;
	u32 least;
	bool timed;

	for (missing = 0; missing < 2; missing++) {
		for (i = 0, least = 128; i < 32; i++) {
			const u32 size = now(&timed);

			least = min(least, size);
			mmp_policy_bulk_adaptive.bulk_done(0, size, size / 2 - missing,
							   size / 2 * USUAL);
		}
		EXPECT(least, <=, missing ? 16 : 64);
		EXPECT(least, >=, missing ? 1 : 64);
	}
}
