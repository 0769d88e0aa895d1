// SPDX-License-Identifier: GPL-2.0
/*
 * adaptive: the number of page table entries that it reads for an answer. The shortcuts of
 * module/anon_order/adaptive.c exist to save reads, and no answer shows whether one was taken.
 */
#include "check.h"
#include "policies.h"
#include "sim.h"

#define END	(4 * SIM_TABLE)
#define FAR	(2 * SIM_TABLE)		/* the beginning of the third of four tables */

enum { MAX_ORDER };

static const struct {
	const char *near;
	unsigned long used, pages;	/* used pages near the fault: first one, number */
	unsigned long fault;
	u32 max_order;
	unsigned int looks, order;
	unsigned long start, end;	/* first page of the VMA, and the page after it */
	unsigned long there;		/* a page that is present and not used; 0: none */
} cases[] = {
	/*
	 * Most faults need 8 reads of page table entries, one per place nearby; streams also read a
	 * whole block.
	 */
	{ "nothing", 0, 0, FAR + 165, 4, 8, 0, 0, END, 0 },
	{ "the block before", FAR + 144, 16, FAR + 160, 4, 24, 4, 0, END, 0 },
	{ "the block before, two from the start", FAR + 144, 16, FAR + 160, 4, 24, 4, FAR + 128, END, 0 },
	{ "the block before, not two from it", FAR + 144, 16, FAR + 160, 4, 101, 4, FAR + 129, END, 0 },
	{ "the block before, with larger folios", FAR + 144, 16, FAR + 160, 5, 72, 4, 0, END, 0 },
	{ "the block behind", FAR + 176, 16, FAR + 175, 4, 42, 4, 0, END, 0 },
	{ "the block behind, two to the end", FAR + 176, 16, FAR + 160, 4, 42, 4, 0, FAR + 192, 0 },
	{ "the block behind, not two to it", FAR + 176, 16, FAR + 161, 4, 121, 4, 0, FAR + 192, 0 },
	{ "the block behind, two from the start", FAR + 176, 16, FAR + 160, 4, 42, 4, FAR + 128, END, 0 },
	{ "the block behind, not two from it", FAR + 176, 16, FAR + 160, 4, 121, 4, FAR + 129, END, 0 },
	{ "the block behind, and a page before", FAR + 176, 16, FAR + 175, 4, 122, 4, 0, END, FAR + 159 },
	{ "the block behind, and one before that", FAR + 176, 16, FAR + 175, 4, 42, 4, 0, END, FAR + 158 },
	{ "the block behind, with larger folios", FAR + 176, 16, FAR + 175, 5, 145, 4, 0, END, 0 },
	{ "pages of its group", FAR + 160, 3, FAR + 163, 4, 8, 0, 0, END, 0 },
	{ "the last page of a block", FAR + 159, 1, FAR + 165, 4, 45, 0, 0, END, 0 },
	{ "the group before", FAR + 160, 4, FAR + 165, 4, 131, 2, 0, END, 0 },
	{ "the first block, nothing", 0, 0, FAR + 5, 4, 21, 0, 0, END, 0 },
	{ "the first block, no table before", 0, 0, FAR + 5, 4, 12, 0, FAR, END, 0 },
	{ "the first block, the table before", FAR - 64, 64, FAR, 4, 37, 4, 0, END, 0 },
	{ "the first block, the block behind", FAR + 16, 16, FAR + 15, 4, 18, 4, 0, END, 0 },
	{ "the first block, both", FAR - 64, 96, FAR, 4, 45, 4, 0, END, 0 },
	{ "the first block, the group before", FAR - 4, 4, FAR, 4, 131, 2, 0, END, 0 },
	{ "the last block, nothing", 0, 0, FAR + 500, 4, 36, 0, 0, END, 0 },
	{ "the last block, the block before", FAR + 480, 16, FAR + 496, 4, 16, 4, 0, END, 0 },
	{ "the last block, with larger folios", FAR + 480, 16, FAR + 496, 5, 57, 4, 0, END, 0 },
	{ "the last block, the table behind", FAR + 512, 16, FAR + 511, 4, 120, 4, 0, END, 0 },
};

TEST(answers_cost_as_few_looks_as_they_need)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		struct mmp_decision d;
		unsigned long page;
		struct sim sim;

		sim_init(&sim, &mmp_policy_anon_order_adaptive);
		sim.knob[MAX_ORDER] = cases[i].max_order;
		sim_vma(&sim, cases[i].start, cases[i].end);
		for (page = cases[i].start; page < cases[i].end; page += SIM_TABLE)
			sim_pte(&sim, page);
		for (page = 0; page < cases[i].pages; page++)
			*sim_pte(&sim, cases[i].used + page) =
				__pte(_PAGE_PRESENT | _PAGE_USER | _PAGE_ACCESSED);
		if (cases[i].there)
			*sim_pte(&sim, cases[i].there) = __pte(_PAGE_PRESENT | _PAGE_USER);
		d = sim_ask(&sim, cases[i].fault);
		at("%s", cases[i].near);
		EXPECT(d.order, ==, cases[i].order);
		EXPECT(sim.looks, ==, cases[i].looks);
		sim_free(&sim);
	}
}
