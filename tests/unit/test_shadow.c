// SPDX-License-Identifier: GPL-2.0
/*
 * anon_order/shadow.h: counters of a shadow policy, whose answers have no
 * effect.
 */
#include "anon_order/shadow.h"
#include "check.h"
#include "walks.h"

#define THERE	__pte(_PAGE_PRESENT | _PAGE_USER | _PAGE_ACCESSED)

static struct vm_fault fault_at(struct sim *sim, unsigned long page)
{
	return (struct vm_fault){
		.vma = &sim->vma,
		.address = SIM_BASE + (page << PAGE_SHIFT),
		.pmd = sim_pmd(sim, page),
	};
}

/* Returns 10 * the fate of an answer, plus the order that mmp_fate_of() has lowered it to. */
static int fate(struct sim *sim, unsigned long page, enum mm_policy_site site,
		unsigned int order)
{
	struct vm_fault vmf = fault_at(sim, page);
	enum mmp_fate fate = mmp_fate_of(&vmf, site, &order);

	return 10 * fate + order;
}

enum { SPARED = 10 * MMP_SPARED, MADE = 10 * MMP_MADE, UNCOUNTED = 10 * MMP_UNCOUNTED };

TEST(shadow_folios_are_made_where_nothing_is)
{
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_never);
	sim_vma(&sim, 4, 2 * SIM_TABLE);
	EXPECT(fate(&sim, 37, MM_POLICY_PTE, 4), ==, MADE + 4);
	EXPECT(fate(&sim, 37, MM_POLICY_PTE, 1), ==, SPARED + 0);
	EXPECT(fate(&sim, 37, MM_POLICY_PTE, 0), ==, SPARED + 0);
	EXPECT(fate(&sim, 37, MM_POLICY_SWAPIN, 4), ==, UNCOUNTED + 4);
	*sim_pte(&sim, 48) = THERE;
	*sim_pte(&sim, 31) = THERE;
	EXPECT(fate(&sim, 37, MM_POLICY_PTE, 4), ==, MADE + 4);
	*sim_pte(&sim, 47) = THERE;
	EXPECT(fate(&sim, 37, MM_POLICY_PTE, 4), ==, SPARED + 4);
	EXPECT(fate(&sim, 46, MM_POLICY_PTE, 4), ==, SPARED + 4);
	EXPECT(fate(&sim, 32, MM_POLICY_PTE, 4), ==, SPARED + 4);
	EXPECT(fate(&sim, 37, MM_POLICY_PTE, 3), ==, MADE + 3);
	sim_free(&sim);
}

TEST(shadow_folios_fit_into_the_area)
{
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_never);
	sim_vma(&sim, 4, SIM_TABLE + 8);
	*sim_pte(&sim, 3) = THERE;
	*sim_pte(&sim, SIM_TABLE + 8) = THERE;
	EXPECT(fate(&sim, 5, MM_POLICY_PTE, 9), ==, MADE + 2);
	EXPECT(fate(&sim, 9, MM_POLICY_PTE, 4), ==, MADE + 3);
	EXPECT(fate(&sim, SIM_TABLE + 1, MM_POLICY_PTE, 9), ==, MADE + 3);
	sim_vma(&sim, 1, 3);
	EXPECT(fate(&sim, 2, MM_POLICY_PTE, 9), ==, SPARED + 0);
	sim_free(&sim);
}

/* With one page present, each fault in the block around it is spared, and no other fault is. */
TEST(shadow_folios_are_spared_by_any_page)
{
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_never);
	sim_vma(&sim, 0, SIM_TABLE);
	for (unsigned int order = 2; order <= 8; order++)
		for (unsigned long page = 0; page < SIM_TABLE; page += 7)
			for (unsigned long there = page % 5; there < SIM_TABLE; there += 5) {
				const bool same = page >> order == there >> order;

				if (there == page)
					continue;
				*sim_pte(&sim, there) = THERE;
				at("order %u, page %lu, one is at %lu", order, page, there);
				EXPECT(fate(&sim, page, MM_POLICY_PTE, order), ==,
				       (same ? SPARED : MADE) + order);
				*sim_pte(&sim, there) = __pte(0);
			}
	sim_free(&sim);
}

TEST(shadow_folios_of_pmd_size_are_counted_once)
{
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_never);
	sim_vma(&sim, 0, SIM_TABLE);
	EXPECT(fate(&sim, 5, MM_POLICY_PMD, 9), ==, MADE + 9);
	EXPECT(fate(&sim, 5, MM_POLICY_PTE, 9), ==, UNCOUNTED + 9);
	EXPECT(fate(&sim, 5, MM_POLICY_PMD, 8), ==, UNCOUNTED + 8);
	EXPECT(fate(&sim, 5, MM_POLICY_PMD, 0), ==, UNCOUNTED + 0);
	*sim_pte(&sim, 400) = THERE;
	EXPECT(fate(&sim, 5, MM_POLICY_PTE, 9), ==, SPARED + 9);
	sim_free(&sim);
}

/* Faults get order 0; these counters record the orders of the shadow policy. */
static const struct mmp_policy *asked;
static unsigned long wanted[MMP_MAX_ORDER + 1], made[MMP_MAX_ORDER + 1];
static unsigned long inside;

static struct mmp_decision shadowed(const struct vm_fault *vmf, enum mm_policy_site site,
				    const u32 *knob)
{
	struct mmp_decision d = asked->anon_order(vmf, site, knob);
	enum mmp_fate fate = mmp_fate_of(vmf, site, &d.order);

	if (fate != MMP_UNCOUNTED) {
		wanted[d.order]++;
		made[d.order] += fate == MMP_MADE;
		inside += d.reason == MMP_NO_ROOM;
	}
	return (struct mmp_decision){ MMP_CAP, 0 };
}

struct cost {
	double faults, pages;
};

static struct cost cost_of(const struct mmp_policy *policy, u32 cap, walk *walk)
{
	struct cost cost;
	struct sim sim;

	sim_init(&sim, policy);
	sim.knob[0] = cap;
	sim.crowded = true;	/* then ask() asks the policy once per fault */
	walk(&sim);
	cost = (struct cost){ sim.faults, sim_used(&sim) };
	sim_free(&sim);
	return cost;
}

/* Estimates a policy's cost from its counters as a shadow, as docs/policies/anon_order.md says. */
static struct cost estimate_of(const struct mmp_policy *policy, u32 cap, walk *walk)
{
	static struct mmp_policy never = { .name = "shadowed", .anon_order = shadowed };
	struct cost cost;
	int order;

	for (order = 0; order <= MMP_MAX_ORDER; order++)
		wanted[order] = made[order] = 0;
	inside = 0;
	asked = policy;
	cost = cost_of(&never, cap, walk);
	for (order = MMP_MIN_ORDER; order <= MMP_MAX_ORDER; order++) {
		cost.faults -= wanted[order] - made[order];
		cost.pages += ((double)made[order] * (1 << order)) - wanted[order];
	}
	return cost;
}

TEST(a_shadow_tells_what_a_fixed_order_would_cost)
{
	static walk *const walks[] = {
		forward, backward, streams, unaligned, every_32k, every_64k, every_128k,
		every_2m, random_quarter,
	};
	u32 cap;
	int i;

	for (cap = 0; cap <= MMP_MAX_ORDER; cap++)
		for (i = 0; i < (int)ARRAY_SIZE(walks); i++) {
			struct cost real = cost_of(&mmp_policy_anon_order_fixed, cap, walks[i]);
			struct cost told = estimate_of(&mmp_policy_anon_order_fixed, cap,
						       walks[i]);

			at("cap %u, walk %d", cap, i);
			EXPECT(told.faults, >=, 0.99 * real.faults);
			EXPECT(told.faults, <=, 1.01 * real.faults);
			EXPECT(told.pages, >=, 0.99 * real.pages);
			EXPECT(told.pages, <=, 1.01 * real.pages);
		}
}

/*
 * If no folio fits around a fault, the reason may be that the shadow's earlier folio
 * was not made. So the real cost lies between the estimates with and without these
 * faults.
 */
TEST(a_shadow_tells_between_what_adaptive_would_cost)
{
	static walk *const walks[] = {
		forward, backward, streams, every_32k, every_64k, every_128k, every_2m,
	};
	int i;

	for (i = 0; i < (int)ARRAY_SIZE(walks); i++) {
		struct cost real = cost_of(&mmp_policy_anon_order_adaptive, 4, walks[i]);
		struct cost told = estimate_of(&mmp_policy_anon_order_adaptive, 4, walks[i]);

		at("walk %d", i);
		EXPECT(told.faults, >=, 0.98 * real.faults);
		EXPECT(told.faults - inside, <=, 1.02 * real.faults);
		EXPECT(told.pages, >=, 0.98 * real.pages);
		EXPECT(told.pages - inside, <=, 1.02 * real.pages);
		EXPECT(inside, <, 0.8 * AREA);
	}
}
