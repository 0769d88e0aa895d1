// SPDX-License-Identifier: GPL-2.0
/*
 * Credit of module/anon_order/waste.h: the cost of waste for a process, and
 * credit for full memory.
 */
#include <string.h>

#include "anon_order/waste.h"
#include "check.h"
#include "policies.h"
#include "sim.h"

/* A block whose pages are all present, and none used. */
static const pte_t wasted[BLOCK] = { [0 ... BLOCK - 1] = { _PAGE_PRESENT | _PAGE_USER } };

/*
 * Returns after how many calls mmp_credit_left() is true: 1 if the process has
 * credit already.
 */
static unsigned int looks_until_credit(void)
{
	unsigned int looks = 1;

	while (!mmp_credit_left())
		looks++;
	return looks;
}

static const struct {
	/* folios that earn credit; wasted groups and blocks, which cost credit */
	unsigned int earned, groups, blocks;
	unsigned int looks;
} cases[] = {
	/* A new process has credit for nine wasted groups, or for sixteen wasted blocks. */
	{ 0, 0, 0, 1 }, { 0, 9, 0, 1 }, { 0, 10, 0, 12 }, { 0, 0, 16, 1 }, { 0, 0, 17, 8 },
	/* A folio of 64 kB earns as much credit as two wasted blocks cost. */
	{ 1, 0, 18, 1 }, { 1, 0, 19, 8 },
	/* Credit and debt are both bounded. */
	{ 100, 0, 32, 1 }, { 100, 0, 33, 8 }, { 0, 1000, 0, 128 }, { 0, 0, 1000, 128 },
};

TEST(waste_costs_credit)
{
	static const struct mm_struct *const mm = (void *)0x1000, *const other = (void *)0x2000;
	unsigned int i, n;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		mmp_credit_begin(other);
		mmp_credit_begin(mm);
		for (n = 0; n < cases[i].earned; n++)
			mmp_credit_earn(mm, BLOCK_ORDER);
		for (n = 0; n < cases[i].groups; n++)
			mmp_waste_seen(MMP_MAPPED, wasted, GROUP_ORDER);
		for (n = 0; n < cases[i].blocks; n++)
			mmp_waste_seen(MMP_MAPPED, wasted, BLOCK_ORDER);
		at("case %u", i);
		EXPECT(looks_until_credit(), ==, cases[i].looks);
	}
}

/* A credit of 0 still allows a small folio, and asking does not change it. */
TEST(credit_of_none_is_enough)
{
	mmp_credit.left = 0;
	EXPECT(mmp_credit_left(), ==, true);
	EXPECT(mmp_credit.left, ==, 0);
}

/* Used memory and areas with a hole cost no credit; a folio below 64 kB earns none. */
TEST(waste_is_what_is_there_and_not_used)
{
	pte_t hole[BLOCK];
	const int before = mmp_credit.left;
	unsigned int i, order;

	mmp_credit_earn(NULL, BLOCK_ORDER - 1);
	for (order = GROUP_ORDER; order <= BLOCK_ORDER; order += 2) {
		EXPECT(mmp_waste_seen(MMP_USED, wasted, order), ==, MMP_USED);
		for (i = 0; i < 1U << order; i++) {
			memcpy(hole, wasted, sizeof(hole));
			hole[i] = __pte(0);
			EXPECT(mmp_waste_seen(MMP_MAPPED, hole, order), ==, MMP_MAPPED);
		}
	}
	EXPECT(mmp_credit.left, ==, before);
}

/* Without credit, a full group gives no folio; the reason SPARSE_NEIGHBOUR tells that it exists. */
TEST(waste_is_the_reason)
{
	for (unsigned int groups = 0; groups < 3; groups++) {
		struct mmp_decision d;
		struct sim sim;

		sim_init(&sim, &mmp_policy_anon_order_adaptive);
		sim_vma(&sim, 0, SIM_TABLE);
		sim_pte(&sim, 0);
		for (unsigned long page = 0; page < GROUP * groups; page++)
			*sim_pte(&sim, page < GROUP ? 164 + page : 156 - GROUP + page) =
				__pte(_PAGE_PRESENT | _PAGE_USER | _PAGE_ACCESSED);
		at("%u groups", groups);
		mmp_credit = (struct mmp_credit){ &sim.mm, -50 };
		d = sim_ask(&sim, 160);
		EXPECT(d.order, ==, 0);
		EXPECT(d.reason, ==, groups ? MMP_SPARSE_NEIGHBOUR : MMP_NO_NEIGHBOUR);
		mmp_credit = (struct mmp_credit){ &sim.mm, 50 };
		d = sim_ask(&sim, 160);
		EXPECT(d.order, ==, groups ? GROUP_ORDER + (groups > 1) : 0);
		sim_free(&sim);
	}
}
