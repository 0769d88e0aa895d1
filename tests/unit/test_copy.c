// SPDX-License-Identifier: GPL-2.0
/* adaptive: the order of a copy-on-write fault depends on how its neighbours were written. */
#include <linux/bitops.h>
#include <linux/minmax.h>
#include <stdlib.h>

#include "check.h"
#include "sim.h"

#define SHARED	__pte(_PAGE_PRESENT | _PAGE_USER | _PAGE_ACCESSED)
#define OWN	__pte(_PAGE_PRESENT | _PAGE_USER | _PAGE_ACCESSED | _PAGE_RW)
#define UNUSED	__pte(_PAGE_PRESENT | _PAGE_USER | _PAGE_RW)
#define TABLES	2

static void set(struct sim *sim, unsigned long page, unsigned long n, pte_t pte)
{
	while (n--)
		*sim_pte(sim, page++) = pte;
}

static void all_shared(struct sim *sim, u32 max_order)
{
	sim_init(sim, &mmp_policy_anon_order_adaptive);
	sim->knob[0] = max_order;
	sim_vma(sim, 0, TABLES * SIM_TABLE);
	set(sim, 0, TABLES * SIM_TABLE, SHARED);
}

static unsigned int copied(struct sim *sim, unsigned long page)
{
	const struct vm_fault vmf = {
		.vma = &sim->vma,
		.address = SIM_BASE + (page << PAGE_SHIFT),
		.pmd = sim_pmd(sim, page),
	};

	return sim->policy->anon_order(&vmf, MM_POLICY_COPY, sim->knob).order;
}

TEST(a_page_is_copied_where_nothing_was_written)
{
	struct sim sim;

	all_shared(&sim, 8);
	for (unsigned long page = 0; page < TABLES * SIM_TABLE; page++) {
		at("page %lu", page);
		EXPECT(copied(&sim, page), ==, 0);
	}
	sim_free(&sim);
}

TEST(a_block_is_copied_beside_one_that_was_written)
{
	struct sim sim;

	all_shared(&sim, 4);
	set(&sim, 32, 16, OWN);
	for (unsigned long page = 0; page < 96; page++) {
		at("page %lu", page);
		EXPECT(copied(&sim, page), ==,
		       page / 16 == 1 || page / 16 == 3 ? 4 : 0);
	}
	sim_free(&sim);
}

TEST(pages_written_here_and_there_are_no_example)
{
	struct sim sim;

	all_shared(&sim, 4);
	for (unsigned long page = 0; page < SIM_TABLE; page += 2)
		set(&sim, page, 1, OWN);
	for (unsigned long page = 1; page < SIM_TABLE; page += 2) {
		at("page %lu", page);
		EXPECT(copied(&sim, page), ==, 0);
	}
	sim_free(&sim);
}

TEST(a_copy_that_is_not_used_is_no_example)
{
	struct sim sim;

	all_shared(&sim, 4);
	set(&sim, 32, 16, OWN);
	set(&sim, 47, 1, UNUSED);
	EXPECT(copied(&sim, 48), ==, 0);
	EXPECT(copied(&sim, 16), ==, 0);
	set(&sim, 47, 1, OWN);
	set(&sim, 40, 2, UNUSED);
	EXPECT(copied(&sim, 48), ==, 4);
	sim_free(&sim);
}

/*
 * A copy-on-write fault gets 64 kB only if at least min_used_pages pages (14 by default) of a
 * neighbouring block were written.
 */
TEST(a_block_is_copied_if_enough_pages_were_written)
{
	for (unsigned long missing = 1; missing < 4; missing++) {
		struct sim sim;

		all_shared(&sim, 4);
		set(&sim, 32, 16, OWN);
		set(&sim, 40, missing, SHARED);
		at("%lu pages of 16 are still shared", missing);
		EXPECT(copied(&sim, 48), ==, missing <= 2 ? 4 : 0);
		sim_free(&sim);
	}
}

TEST(copies_grow_by_doubling_up_to_the_cap)
{
	struct sim sim;

	all_shared(&sim, 7);
	for (unsigned int order = 4; order < 9; order++) {
		at("order %u", order);
		set(&sim, 0, 1UL << order, OWN);
		EXPECT(copied(&sim, 1UL << order), ==, order < 7 ? order : 7);
	}
	sim_free(&sim);
}

TEST(another_page_table_is_not_looked_into)
{
	struct sim sim;

	all_shared(&sim, 4);
	set(&sim, 0, SIM_TABLE, OWN);
	EXPECT(copied(&sim, SIM_TABLE), ==, 0);
	EXPECT(copied(&sim, SIM_TABLE + 16), ==, 0);
	sim_free(&sim);
}

/*
 * The rule, written in another way: returns true if enough pages of the piece,
 * and both its ends, were written by the process.
 */
static bool piece_is_own(struct sim *sim, unsigned long first, unsigned long nr)
{
	unsigned long own = 0;

	for (unsigned long i = 0; i < nr; i++)
		own += sim_pte(sim, first + i)->pte == OWN.pte;
	return own >= nr / 16 * sim->knob[1] && sim_pte(sim, first)->pte == OWN.pte &&
	       sim_pte(sim, first + nr - 1)->pte == OWN.pte;
}

static unsigned int to_copy(struct sim *sim, unsigned long page)
{
	unsigned int order, most = 0;

	for (order = 4; order <= 8 && (order == 4 || order <= sim->knob[0]); order++) {
		const unsigned long nr = 1UL << order, first = page / nr * nr;

		if ((first && piece_is_own(sim, first - nr, nr)) ||
		    (first + nr < SIM_TABLE && piece_is_own(sim, first + nr, nr)))
			most = order;
		else if (order == 4)
			return 0;	/* without a written block, the order is 0 */
	}
	return min(most, sim->knob[0]);
}

/* In random page tables with written runs and shared holes, adaptive answers as the rule does. */
TEST(copies_are_as_large_as_what_was_written)
{
	static unsigned int found[10];

	srand(3);
	for (int round = 0; round < 400; round++) {
		struct sim sim;

		all_shared(&sim, 2 + rand() % 8);
		for (int run = rand() % 6; run >= 0; run--) {
			const unsigned long nr = 16UL << rand() % 5, holes = rand() % (nr / 8);

			set(&sim, rand() % (SIM_TABLE / nr) * nr, nr, OWN);
			for (unsigned long i = 0; i < holes; i++)
				set(&sim, rand() % SIM_TABLE, 1, SHARED);
		}
		for (unsigned long page = rand() % 16; page < SIM_TABLE; page += 16) {
			at("round %d, page %lu", round, page);
			EXPECT(copied(&sim, page), ==, to_copy(&sim, page));
			found[copied(&sim, page)]++;
		}
		sim_free(&sim);
	}
	for (unsigned int order = 2; order <= 8; order++)
		EXPECT(found[order], >, 20);
}
