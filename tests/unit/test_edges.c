// SPDX-License-Identifier: GPL-2.0
/*
 * No policy reads anything outside the VMA, with any knobs, wherever the VMA
 * lies.
 */
#include "check.h"
#include "policies.h"
#include "walks.h"

/* Returns a value for a knob: a bound, the default, or a random one. */
static u32 some_value(const struct mmp_knob *knob)
{
	switch (pick(4)) {
	case 0:
		return knob->min;
	case 1:
		return knob->max;
	case 2:
		return knob->def;
	}
	return knob->min + pick(knob->max - knob->min + 1);
}

/* Sets a VMA of random size, mostly at the edge of a page table or of a page of PMDs. */
static void some_vma(struct sim *sim)
{
	static const unsigned long edges[] = {
		0, SIM_TABLE, 3 * SIM_TABLE, SIM_PUD - SIM_TABLE, SIM_PUD,
		SIM_PAGES - SIM_TABLE, SIM_PAGES,
	};
	unsigned long edge = edges[pick(ARRAY_SIZE(edges))];
	unsigned long size = pick(2) ? 1 + pick(40) : 1 + pick(2000);
	unsigned long start = edge - min(edge, 1UL + pick(size + 20));

	sim_vma(sim, start, min(start + size, SIM_PAGES));
}

static unsigned long first_page(const struct sim *sim)
{
	return (sim->vma.vm_start - SIM_BASE) >> PAGE_SHIFT;
}

static unsigned long nr_pages(const struct sim *sim)
{
	return (sim->vma.vm_end - sim->vma.vm_start) >> PAGE_SHIFT;
}

/* Does something random: touches pages upwards or downwards, swaps some out, or ages one. */
static void something(struct sim *sim)
{
	unsigned long first = first_page(sim), n = nr_pages(sim);
	unsigned long at_page = pick(n), count = pick(600), i;

	switch (pick(8)) {
	case 0:
		for (i = at_page; i < n && i < at_page + count; i++)
			sim_swap_out(sim, first + i);
		return;
	case 1:
		sim_age(sim, first + at_page);
		return;
	case 2:
		for (i = 0; i < count && i <= at_page; i++)
			sim_touch(sim, first + at_page - i);
		return;
	case 3:
		for (i = at_page; i < n && i < at_page + count; i++)
			sim_touch(sim, first + i);
		return;
	}
	sim_touch(sim, first + at_page);
}

static void some_life(const struct mmp_policy *policy)
{
	struct sim sim;
	unsigned int i;

	sim_init(&sim, policy);
	for (i = 0; i < policy->nr_knobs; i++)
		sim.knob[i] = some_value(&policy->knobs[i]);
	sim.vma.vm_flags = pick(10) ? 0 : VM_LOCKED;
	some_vma(&sim);
	for (i = 0; i < 60; i++)
		something(&sim);
	EXPECT(sim_used(&sim), <=, nr_pages(&sim));
	sim_free(&sim);
}

TEST(no_policy_looks_outside_the_vma)
{
	const struct mmp_policy *policy;
	int i, life;

	for_each_anon_order(policy, i)
		for (life = 0; life < 700; life++) {
			at("policy %s, life %d", policy->name, life);
			some_life(policy);
		}
}

/*
 * The policy reads nothing outside VMAs of 1 to 34 pages at each offset near the end of a page
 * table, filled upwards or downwards.
 */
TEST(small_vmas_at_each_offset)
{
	unsigned long start, size, i;

	for (size = 1; size <= 34; size++)
		for (start = SIM_TABLE - 34; start <= SIM_TABLE; start++) {
			struct sim sim;

			sim_init(&sim, &mmp_policy_anon_order_adaptive);
			sim.knob[1] = size % (sim.policy->knobs[1].max + 1);
			sim_vma(&sim, start, start + size);
			for (i = 0; i < size; i++)
				sim_touch(&sim, start % 2 ? start + i : start + size - 1 - i);
			at("%lu pages from page %lu", size, start);
			EXPECT(sim_used(&sim), ==, size);
			sim_free(&sim);
		}
}
