// SPDX-License-Identifier: GPL-2.0
/* anon_order.h: reading page tables near a fault, and lowering orders. */
#include <linux/bitops.h>

#include "check.h"
#include "sim.h"

#define PRESENT		__pte(_PAGE_PRESENT | _PAGE_RW | _PAGE_USER)
#define YOUNG		__pte(_PAGE_PRESENT | _PAGE_USER | _PAGE_ACCESSED)
#define PROTNONE	__pte(_PAGE_PROTNONE | _PAGE_ACCESSED)
#define SWAPPED		__pte(0x12345000UL)
/* what an erratum of Xeon Phi may leave in an empty entry */
#define TORN		__pte(_PAGE_DIRTY | _PAGE_ACCESSED)

TEST(only_a_page_table_is_followed)
{
	static const pte_t table[PTRS_PER_PTE] __attribute__((aligned(PAGE_SIZE)));
	const unsigned long entry = (unsigned long)table;

	EXPECT(mmp_is_table(__pmd(entry | _PAGE_TABLE)), ==, true);
	EXPECT(mmp_table(__pmd(entry | _PAGE_TABLE)) == table, ==, true);
	EXPECT(mmp_is_table(__pmd(0)), ==, false);
	EXPECT(mmp_is_table(__pmd(entry | _PAGE_TABLE | _PAGE_PSE)), ==, false);
	EXPECT(mmp_is_table(__pmd(entry | _PAGE_PSE | _PAGE_RW)), ==, false);
	EXPECT(mmp_is_table(__pmd(entry | _PAGE_RW)), ==, false);
}

static struct vm_fault fault_at(struct sim *sim, unsigned long page)
{
	return (struct vm_fault){
		.vma = &sim->vma,
		.address = SIM_BASE + (page << PAGE_SHIFT),
		.pmd = sim_pmd(sim, page),
	};
}

static enum mmp_page look(struct sim *sim, unsigned long page, long distance)
{
	struct vm_fault vmf = fault_at(sim, page);
	struct mmp_place place = mmp_place(&vmf);
	enum mmp_page leaf;
	const pte_t *pte = mmp_entries(&place, vmf.address + distance * PAGE_SIZE, &leaf);

	return pte ? mmp_page_of(*pte) : leaf;
}

static void three_tables(struct sim *sim)
{
	sim_init(sim, &mmp_policy_anon_order_never);
	sim_vma(sim, 0, 3 * SIM_TABLE);
}

TEST(entries_say_what_is_there)
{
	static const struct {
		pte_t pte;
		enum mmp_page page;
	} rows[] = {
		{ __pte(0), MMP_EMPTY },
		{ TORN, MMP_EMPTY },
		{ PRESENT, MMP_MAPPED },
		{ YOUNG, MMP_USED },
		{ PROTNONE, MMP_USED },
		{ SWAPPED, MMP_EMPTY },
	};
	struct sim sim;
	unsigned int i;

	three_tables(&sim);
	for (i = 0; i < ARRAY_SIZE(rows); i++) {
		at("row %u", i);
		*sim_pte(&sim, 9) = rows[i].pte;
		EXPECT(look(&sim, 8, 1), ==, rows[i].page);
		EXPECT(look(&sim, SIM_TABLE, 9L - SIM_TABLE), ==, rows[i].page);
	}
	sim_free(&sim);
}

/*
 * Only page 512 is used. Reading at each distance finds it from the page at that distance, and
 * not from the page before.
 */
TEST(each_distance_finds_its_page)
{
	struct sim sim;
	long distance;

	three_tables(&sim);
	*sim_pte(&sim, SIM_TABLE) = YOUNG;
	for (distance = -SIM_TABLE; distance <= (long)SIM_TABLE; distance++) {
		at("distance %ld", distance);
		EXPECT(look(&sim, SIM_TABLE - distance, distance), ==, MMP_USED);
		if (distance < (long)SIM_TABLE)
			EXPECT(look(&sim, SIM_TABLE - distance - 1, distance), ==, MMP_EMPTY);
	}
	sim_free(&sim);
}

TEST(a_fault_without_table_sees_the_neighbours)
{
	struct sim sim;

	three_tables(&sim);
	*sim_pte(&sim, SIM_TABLE - 1) = YOUNG;
	*sim_pte(&sim, 2 * SIM_TABLE) = PRESENT;
	EXPECT(look(&sim, SIM_TABLE, -1), ==, MMP_USED);
	EXPECT(look(&sim, SIM_TABLE, -2), ==, MMP_EMPTY);
	EXPECT(look(&sim, SIM_TABLE, 1), ==, MMP_EMPTY);
	EXPECT(look(&sim, 2 * SIM_TABLE - 1, 1), ==, MMP_MAPPED);
	EXPECT(look(&sim, 2 * SIM_TABLE - 1, -1), ==, MMP_EMPTY);
	sim_free(&sim);
}

TEST(a_huge_neighbour_is_one_page)
{
	const unsigned long huge = _PAGE_PRESENT | _PAGE_RW | _PAGE_USER | _PAGE_PSE;
	struct sim sim;

	three_tables(&sim);
	*sim_pmd(&sim, 0) = __pmd(huge);
	*sim_pmd(&sim, 2 * SIM_TABLE) = __pmd(huge | _PAGE_ACCESSED);
	EXPECT(look(&sim, SIM_TABLE, -1), ==, MMP_MAPPED);
	EXPECT(look(&sim, SIM_TABLE, -512), ==, MMP_MAPPED);
	EXPECT(look(&sim, 2 * SIM_TABLE - 1, 1), ==, MMP_USED);
	EXPECT(look(&sim, 2 * SIM_TABLE - 1, 512), ==, MMP_USED);

	/*
	 * A huge page that is being split has PSE without PRESENT; it still
	 * counts as huge.
	 */
	*sim_pmd(&sim, 0) = __pmd(huge & ~_PAGE_PRESENT);
	EXPECT(look(&sim, SIM_TABLE, -1), ==, MMP_MAPPED);

	/*
	 * During migration the PMD holds a swap entry, which points to no page
	 * table.
	 */
	*sim_pmd(&sim, 0) = __pmd(0x12345000UL);
	EXPECT(look(&sim, SIM_TABLE, -1), ==, MMP_EMPTY);
	*sim_pmd(&sim, 0) = __pmd(0);
	sim_free(&sim);
}

/* A fault does not read PMDs in another page of PMDs, as the address of that page is unknown. */
TEST(a_page_of_pmds_is_not_left)
{
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_never);
	sim_vma(&sim, 0, SIM_PAGES);
	*sim_pte(&sim, SIM_PUD - 1) = YOUNG;
	*sim_pte(&sim, SIM_PUD) = YOUNG;
	EXPECT(look(&sim, SIM_PUD, -1), ==, MMP_EMPTY);
	EXPECT(look(&sim, SIM_PUD - 1, 1), ==, MMP_EMPTY);
	EXPECT(look(&sim, 0, -1), ==, MMP_EMPTY);
	EXPECT(look(&sim, SIM_PAGES - 1, 1), ==, MMP_EMPTY);
	sim_free(&sim);
}

TEST(lowered_by_examples)
{
	static const struct {
		unsigned int order, free, limit, lowered;
	} rows[] = {
		{ 9, 0, 0, 9 },		/* a limit of 0 lowers no order */
		{ 9, 1000, 0, 9 },
		{ 9, 0, 5, 0 },		/* no memory left */
		{ 4, 0, 90, 0 },
		{ 4, 50, 5, 4 },	/* exactly 5 % free */
		{ 4, 49, 5, 3 },
		{ 4, 25, 5, 2 },
		{ 9, 25, 5, 4 },
		{ 4, 12, 5, 0 },
		{ 4, 899, 90, 3 },
		{ 0, 0, 5, 0 },
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(rows); i++) {
		at("row %u", i);
		EXPECT(mmp_lowered(rows[i].order, rows[i].free, rows[i].limit), ==,
		       rows[i].lowered);
	}
}

static void lowered_properly(unsigned int order, unsigned int free, unsigned int limit)
{
	unsigned int low = mmp_lowered(order, free, limit);

	EXPECT(low, <=, order);
	EXPECT(low, <=, mmp_lowered(order + 1, free, limit));
	EXPECT(low, <=, mmp_lowered(order, free + 1, limit));
	EXPECT(low, >=, mmp_lowered(order, free, limit + 1));
	if (!limit || free >= limit * 10)
		EXPECT(low, ==, order);
	if (limit && !free)
		EXPECT(low, ==, 0);
}

/* Less memory, or a higher limit, never gives a larger folio. */
TEST(lowered_is_monotonic)
{
	unsigned int order, free, limit;

	for (order = 0; order <= MMP_MAX_ORDER; order++)
		for (limit = 0; limit <= 90; limit++)
			for (free = 0; free <= 1000; free++) {
				at("order %u, free %u, limit %u", order, free, limit);
				lowered_properly(order, free, limit);
			}
}
