// SPDX-License-Identifier: GPL-2.0
/*
 * Whole access patterns: faults and memory of adaptive, compared with order 0
 * and fixed orders.
 */
#include <stdlib.h>

#include "check.h"
#include "walks.h"

enum { MAX_ORDER, MIN_USED_PAGES, PROBE_BLOCKS, MIN_FOLIOS };

struct cost {
	unsigned long faults, pages, huge;
};

static struct cost cost_of(const struct mmp_policy *policy, u32 cap, walk *walk)
{
	struct cost cost;
	struct sim sim;

	sim_init(&sim, policy);
	sim.knob[MAX_ORDER] = cap;
	walk(&sim);
	cost = (struct cost){ sim.faults, sim_used(&sim), sim.folios[MMP_MAX_ORDER] };
	sim_free(&sim);
	return cost;
}

static struct cost adaptive(u32 cap, walk *walk)
{
	return cost_of(&mmp_policy_anon_order_adaptive, cap, walk);
}

static struct cost order_0(walk *walk)
{
	return cost_of(&mmp_policy_anon_order_never, 0, walk);
}

/* Returns the fixed order up to @cap that has the fewest faults. */
static struct cost best_fixed(u32 cap, walk *walk)
{
	struct cost best = cost_of(&mmp_policy_anon_order_fixed, 0, walk);

	for (; cap >= MMP_MIN_ORDER; cap--) {
		struct cost cost = cost_of(&mmp_policy_anon_order_fixed, cap, walk);

		if (cost.faults < best.faults)
			best = cost;
	}
	return best;
}

struct named {
	const char *name;
	walk *walk;
};

#define WALK(name)	{ #name, name }

TEST(dense_walks_fault_as_with_the_best_fixed_order)
{
	static const struct named dense[] = {
		WALK(forward), WALK(backward), WALK(streams), WALK(uneven_streams),
		WALK(unaligned), WALK(heap), WALK(stack_again), WALK(across_pmd_pages),
		WALK(swap_in_forward), WALK(swap_in_backward), WALK(after_fork),
	};
	unsigned int i, cap;

	for (i = 0; i < ARRAY_SIZE(dense); i++)
		for (cap = MMP_MIN_ORDER; cap <= 4; cap++) {
			struct cost fixed = best_fixed(cap, dense[i].walk);
			struct cost cost = adaptive(cap, dense[i].walk);

			at("%s, cap %u", dense[i].name, cap);
			EXPECT(fixed.faults * 3, <, order_0(dense[i].walk).faults);
			EXPECT(cost.faults, <=, fixed.faults * 1.10);
			EXPECT(cost.pages, ==, order_0(dense[i].walk).pages);
		}
}

TEST(sparse_walks_take_the_memory_of_order_0)
{
	static const struct named sparse[] = {
		WALK(every_32k), WALK(every_64k), WALK(every_128k), WALK(random_quarter),
		WALK(swap_in_sparse),
	};
	unsigned int i, cap;

	for (i = 0; i < ARRAY_SIZE(sparse); i++)
		for (cap = MMP_MIN_ORDER; cap <= MMP_MAX_ORDER; cap++) {
			struct cost least = order_0(sparse[i].walk);
			struct cost cost = adaptive(cap, sparse[i].walk);

			at("%s, cap %u", sparse[i].name, cap);
			EXPECT(cost.pages, <=, least.pages * 1.02);
			EXPECT(cost.faults, <=, least.faults);
		}
}

/* A fixed order at the same cap takes far more memory, so the walks are a real test. */
TEST(fixed_orders_waste_memory_on_sparse_walks)
{
	EXPECT(cost_of(&mmp_policy_anon_order_fixed, 4, every_64k).pages, ==, AREA);
	EXPECT(cost_of(&mmp_policy_anon_order_fixed, 4, random_quarter).pages, >, AREA / 4 * 3.5);
}

TEST(a_walk_that_changes)
{
	struct cost cost = adaptive(4, dense_then_sparse);

	EXPECT(cost.pages, <=, order_0(dense_then_sparse).pages * 1.05);
	EXPECT(cost.faults, <=, order_0(dense_then_sparse).faults);

	/*
	 * A fixed order has fewer faults than adaptive only in the sparse half,
	 * because it wastes memory there.
	 */
	cost = adaptive(4, sparse_then_dense);
	EXPECT(cost.pages, <=, order_0(sparse_then_dense).pages * 1.02);
	EXPECT(cost.faults, <=, best_fixed(4, sparse_then_dense).faults * 1.10);

	/* All pages are touched in the end, so large folios waste nothing. */
	cost = adaptive(4, sparse_filled_up);
	EXPECT(cost.pages, ==, AREA);
	EXPECT(cost.faults, <, order_0(sparse_filled_up).faults / 2);
}

/* A stack ends at the page that faults, so that no large folio fits. */
TEST(a_growing_stack_stays_at_order_0)
{
	EXPECT(adaptive(4, stack).faults, ==, AREA / 4);
	EXPECT(best_fixed(4, stack).faults, ==, AREA / 4);
}

/*
 * Touches @used pages of each @size, beginning with page @first, and checks that this maps at most
 * twice as many pages, plus one folio.
 */
static void records(u32 cap, unsigned long size, unsigned long used, unsigned long first)
{
	unsigned long i, touched = 0;
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_adaptive);
	sim.knob[MAX_ORDER] = cap;
	sim_vma(&sim, START, START + 8 * SIM_TABLE);
	for (i = 0; i < 8 * SIM_TABLE; i++)
		if ((i + size - first) % size < used) {
			sim_touch(&sim, START + i);
			touched++;
		}
	at("cap %u, %lu of each %lu pages from page %lu", cap, used, size, first);
	EXPECT(sim_used(&sim), <=, touched * 2 + BIT(cap));
	sim_free(&sim);
}

/* Records at regular distances do not look like used memory; by chance, one folio may be made. */
TEST(records_look_sparse_wherever_they_lie)
{
	unsigned long size, used, first;

	for (size = 2; size <= 129; size += 1 + (size > 17 && size % 16 == 1) * 14)
		for (used = 1; used <= 3 && used < size; used++)
			for (first = 0; first < size; first += 1 + size / 20) {
				records(4, size, used, first);
				records(6, size, used, first);
				records(9, size, used, first);
			}
}

/* Returns the most faults allowed: folios at the cap, growth of each stream, and probe blocks. */
static unsigned long bound(u32 cap, unsigned long nr_streams)
{
	unsigned long blocks = AREA / SIM_TABLE;
	unsigned long probes = cap == MMP_MAX_ORDER ? blocks / 32 + 1 : 0;

	return (AREA >> cap) + nr_streams * (4 + cap) + probes;
}

TEST(any_cap_is_reached_soon)
{
	u32 cap;

	for (cap = MMP_MIN_ORDER; cap <= MMP_MAX_ORDER; cap++) {
		at("cap %u", cap);
		EXPECT(adaptive(cap, forward).faults, <=, bound(cap, 1));
		EXPECT(adaptive(cap, backward).faults, <=, bound(cap, 1));
		EXPECT(adaptive(cap, streams).faults, <=, bound(cap, 4));
		EXPECT(adaptive(cap, uneven_streams).faults, <=, bound(cap, 4));
	}
}

TEST(dense_walks_get_huge_pages)
{
	unsigned long blocks = AREA / SIM_TABLE;

	EXPECT(adaptive(9, forward).huge, >=, blocks - 1 - blocks / 32 - 1);
	EXPECT(adaptive(9, backward).huge, >=, blocks - 1 - blocks / 32 - 1);
	EXPECT(adaptive(8, forward).huge, ==, 0);
	EXPECT(adaptive(9, every_64k).huge, ==, 0);
}

/*
 * While a process grows, its last folio wastes at most 1/32 of its memory, or 64 kB, or 2 MB from
 * 16 MB on.
 */
TEST(folios_grow_with_the_process)
{
	const unsigned long begins = 8 * SIM_TABLE;
	unsigned long page;
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_adaptive);
	sim.mm.elsewhere = 0;
	sim.knob[MAX_ORDER] = 9;
	sim_vma(&sim, 0, SIM_PAGES);
	for (page = 0; page < 2 * AREA; page++) {
		sim_touch(&sim, page);
		at("page %lu", page);
		EXPECT(sim_used(&sim), <=,
		       page + 1 + max(pmd_leaf(*sim_pmd(&sim, page)) ? SIM_TABLE : 16, page / 32));
		if (page == begins - 1)
			EXPECT(sim.folios[9], ==, 0);
		if (page == begins)
			EXPECT(sim.folios[9], ==, 1);
	}
	for (page = 5; page < 7; page++)
		EXPECT(sim.folios[page], >=, 16);
	sim_free(&sim);
}

/* Huge pages have one accessed bit, so adaptive notices sparse use only at the next probe block. */
TEST(a_walk_of_huge_pages_that_turns_sparse)
{
	unsigned long least = order_0(every_2m).pages;
	struct cost cost = adaptive(9, every_2m);

	EXPECT(cost.pages, <=, least + 32 * SIM_TABLE);
	EXPECT(adaptive(8, every_2m).pages, <=, least + SIM_TABLE);
	EXPECT(adaptive(4, every_2m).pages, <=, least + 16);
}

/*
 * A known limit of the method: a program that uses both ends of each folio and nothing between
 * looks dense.
 */
TEST(both_ends_in_use_look_dense)
{
	EXPECT(adaptive(4, both_ends).pages, <=, AREA);
	EXPECT(adaptive(3, both_ends).pages, <, order_0(both_ends).pages + 32);
}

/* Touches @used pages, skips @idle, and so on. Returns pages mapped per page touched. */
static double bursts(u32 cap, u32 least, unsigned long used, unsigned long idle)
{
	unsigned long i, touched = 0;
	struct sim sim;
	double ratio;

	sim_init(&sim, &mmp_policy_anon_order_adaptive);
	sim.knob[MAX_ORDER] = cap;
	sim.knob[MIN_USED_PAGES] = least;
	sim_vma(&sim, START, START + 8 * SIM_TABLE);
	for (i = 0; i < 8 * SIM_TABLE; i++)
		if (i % (used + idle) < used) {
			sim_touch(&sim, START + i);
			touched++;
		}
	EXPECT(sim.faults, <=, touched);
	ratio = (double)sim_used(&sim) / touched;
	sim_free(&sim);
	return ratio;
}

/* The bounds of memory in docs/policies/anon_order.md. */
TEST(bursts_take_bounded_memory)
{
	static const struct {
		u32 cap, least;
		double ratio;
	} rows[] = {
		{ 4, 14, 2.0 }, { 4, 8, 2.1 }, { 6, 14, 2.1 },
	};
	unsigned long used, idle;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(rows); i++)
		for (used = 1; used < 80; used += 1 + used / 20)
			for (idle = 1; idle < 80; idle += 1 + idle / 10) {
				at("row %u, %lu pages in use, %lu not", i, used, idle);
				EXPECT(bursts(rows[i].cap, rows[i].least, used, idle), <=,
				       rows[i].ratio);
			}
}

/*
 * Touches @of_16 pages of each 16, the first ones or random ones (@anywhere). If @of_16 is 0,
 * touches runs of 1 to 20 pages with gaps of 1 to 20. Returns pages mapped per page touched.
 */
static double pieces(unsigned long of_16, bool anywhere)
{
	unsigned long page = START, touched = 0, left = of_16;
	struct sim sim;
	double ratio;

	sim_init(&sim, &mmp_policy_anon_order_adaptive);
	sim_vma(&sim, START, START + 2 * AREA);
	while (page < START + 2 * AREA) {
		bool use = of_16 ? page % 16 < of_16 : left;

		if (of_16 && page % 16 == 0)
			left = of_16;
		if (of_16 && anywhere)
			use = pick(16 - page % 16) < left;
		if (use)
			sim_touch(&sim, page);
		touched += use;
		left -= use;
		page += of_16 || use ? 1 : 1 + pick(20);
		if (!of_16 && !use)
			left = 1 + pick(20);
	}
	ratio = sim_used(&sim) / (double)touched;
	sim_free(&sim);
	return ratio;
}

/* Most 16 kB groups nearby are fully used; folios made next to them must not waste memory. */
TEST(memory_in_pieces_takes_little_more_than_at_order_0)
{
	unsigned long of_16;

	EXPECT(pieces(0, false), <=, 1.10);
	for (of_16 = 1; of_16 < 16; of_16++) {
		at("%lu of 16 pages", of_16);
		EXPECT(pieces(of_16, false), <=, 1.10);
		if (of_16 < 14)	/* from min_used_pages on, blocks count as full */
			EXPECT(pieces(of_16, true), <=, 1.10);
	}
}

/*
 * Fills @streams parts in turn; if @mixed, the blocks of each 2 MB in another order. Ages all pages
 * after each @period touches. Returns the number of faults.
 */
static unsigned long aged_fill(u32 cap, unsigned long streams, bool mixed, unsigned long period)
{
	unsigned long part = AREA / streams, faults, i, j;
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_adaptive);
	sim.knob[MAX_ORDER] = cap;
	sim_vma(&sim, START, START + AREA);
	for (i = 0; i < AREA; i++) {
		unsigned long at = i / streams;

		if (mixed)	/* another order: 7 is coprime to the 32 blocks */
			at = (at & -SIM_TABLE) + at % SIM_TABLE / 16 * 7 % 32 * 16 + at % 16;
		sim_touch(&sim, START + i % streams * part + at);
		if (period && i % period == period - 1)
			for (j = 0; j < AREA; j++)
				if (!pmd_none(*sim_pmd(&sim, START + j)))
					sim_age(&sim, START + j);
	}
	faults = sim.faults;
	sim_free(&sim);
	return faults;
}

/*
 * Reclaim, DAMON and clear_refs clear the accessed bits of whole ranges. The
 * policy must not take these ranges for sparsely used memory.
 */
TEST(memory_that_others_age)
{
	unsigned long streams;
	int mixed;

	for (streams = 1; streams <= 4; streams *= 4)
		for (mixed = 0; mixed < 2; mixed++) {
			unsigned long without = aged_fill(4, streams, mixed, 0);

			at("%lu streams, mixed %d", streams, mixed);
			EXPECT(aged_fill(4, streams, mixed, AREA / 4), <=, without * 1.06);
		}
}
