// SPDX-License-Identifier: GPL-2.0
/* Tests the policies of anon_order that read no page table. */
#include "check.h"
#include "walks.h"

static unsigned int order_of(const struct mmp_policy *policy, u32 knob0, u32 knob1,
			     unsigned long pages, enum mmp_reason *reason)
{
	struct mmp_decision d;
	struct sim sim;

	sim_init(&sim, policy);
	sim.knob[0] = knob0;
	sim.knob[1] = knob1;
	sim_vma(&sim, START, START + pages);
	d = sim_ask(&sim, START);
	*reason = d.reason;
	sim_free(&sim);
	return d.order;
}

TEST(never_is_order_0)
{
	enum mmp_reason reason;

	EXPECT(order_of(&mmp_policy_anon_order_never, 0, 0, AREA, &reason), ==, 0);
	EXPECT(reason, ==, MMP_CAP);
}

TEST(fixed_is_its_cap)
{
	enum mmp_reason reason;
	u32 cap;

	for (cap = 0; cap <= MMP_MAX_ORDER; cap++) {
		EXPECT(order_of(&mmp_policy_anon_order_fixed, cap, 0, AREA, &reason), ==, cap);
		EXPECT(reason, ==, MMP_CAP);
	}
}

TEST(vma_size_by_examples)
{
	static const struct {
		unsigned long pages;
		u32 max_order, min_folios;
		unsigned int order;
	} rows[] = {
		{ 1, 4, 64, 0 },
		{ 64, 4, 64, 0 },
		{ 127, 4, 64, 0 },
		{ 128, 4, 64, 1 },
		{ 256, 4, 64, 2 },
		{ 1023, 4, 64, 3 },
		{ 1024, 4, 64, 4 },
		{ AREA, 4, 64, 4 },
		{ AREA, 9, 64, 8 },
		{ AREA, 9, 4096, 2 },
		{ AREA, 9, 1, 9 },
		{ 511, 9, 1, 8 },
		{ 1, 9, 1, 0 },
		{ AREA, 0, 1, 0 },
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(rows); i++) {
		enum mmp_reason reason;

		at("row %u", i);
		EXPECT(order_of(&mmp_policy_anon_order_vma_size, rows[i].max_order,
				rows[i].min_folios, rows[i].pages, &reason), ==,
		       rows[i].order);
		EXPECT(reason, ==, MMP_CAP);
	}
}

/* vma_size lets khugepaged collapse to the order that faults get in this VMA, not to max_order. */
TEST(vma_size_says_its_cap_for_a_vma)
{
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_vma_size);
	sim.knob[0] = 9;
	sim.knob[1] = 64;
	sim_vma(&sim, START, START + 1024);
	EXPECT(sim_cap(&sim), ==, 4);
	sim_vma(&sim, START, START + AREA);
	EXPECT(sim_cap(&sim), ==, 8);
	sim_free(&sim);
}

/* At most one folio is wasted: vma_size requests an order only if min_folios folios fit. */
TEST(vma_size_bounds_its_waste)
{
	unsigned long pages;

	for (pages = 1; pages < 3000; pages += 7) {
		enum mmp_reason reason;
		unsigned int order = order_of(&mmp_policy_anon_order_vma_size, 9, 64, pages, &reason);

		at("%lu pages", pages);
		EXPECT(order && pages >> order < 64, ==, false);
		if (order < 9)
			EXPECT(pages >> (order + 1), <, 64);
	}
}
