// SPDX-License-Identifier: GPL-2.0
/*
 * Tests the contract at the head of anon_order/adaptive.c: on faults in random page tables, the
 * shortcuts answer as the rule does.
 */
#include <linux/mm.h>

#include "anon_order/judge.h"
#include "check.h"
#include "walks.h"

#define FAULTS	165000
#define TABLES	3UL
#define HERE	SIM_TABLE	/* the first page of the table that the faults are in */

#define USED	__pte(_PAGE_PRESENT | _PAGE_USER | _PAGE_ACCESSED)
#define UNUSED	__pte(_PAGE_PRESENT | _PAGE_USER)
#define SWAPPED	__pte(0x12345000UL)

static pte_t some_entry(unsigned int kind)
{
	if (kind < 4)
		return __pte(0);
	if (kind < 8 || pick(8))
		return USED;
	return pick(2) ? UNUSED : pick(2) ? SWAPPED : __pte(0);
}

/*
 * Fills a page table from @page on with runs of entries of one kind. All runs are blocks, all are
 * groups, or their lengths are random.
 */
static void fill(struct sim *sim, unsigned long page)
{
	const unsigned int most[] = { BLOCK, GROUP, 40, 6, 2 * BLOCK };
	const unsigned int style = pick(ARRAY_SIZE(most));
	const unsigned long end = page + SIM_TABLE;

	while (page < end) {
		unsigned long run = style < 2 ? most[style] : 1 + pick(most[style]);
		const unsigned int kind = pick(10);

		while (run-- && page < end)
			*sim_pte(sim, page++) = some_entry(kind);
	}
}

/* Sets a random VMA that contains page @fault; in one case of four it begins, or ends, near it. */
static void some_vma(struct sim *sim, unsigned long fault)
{
	const unsigned long before = pick(4) ? fault : min(fault, (unsigned long)pick(80));
	const unsigned long behind = pick(4) ? SIM_TABLE * TABLES : fault + 1 + pick(80);

	sim_vma(sim, fault - before, min(behind, SIM_TABLE * TABLES));
}

/* Makes three random page tables, with random knobs. A table may be missing or a huge page. */
static void some_tables(struct sim *sim)
{
	unsigned long table;

	sim_free(sim);
	sim_init(sim, &mmp_policy_anon_order_adaptive);
	sim_vma(sim, 0, SIM_TABLE * TABLES);
	for (table = 0; table < TABLES; table++) {
		const unsigned int kind = pick(16);

		if (kind > 1)
			fill(sim, table * SIM_TABLE);
		else if (kind && table * SIM_TABLE != HERE)
			*sim_pmd(sim, table * SIM_TABLE) =
				__pmd(_PAGE_TABLE & (pick(2) ? ~0UL : ~_PAGE_ACCESSED));
		if (kind == 1 && table * SIM_TABLE != HERE)
			sim_pmd(sim, table * SIM_TABLE)->pmd |= _PAGE_PSE;
	}
	sim->knob[MAX_ORDER] = pick(2) ? 4 : MMP_MIN_ORDER + pick(8);
	sim->knob[MIN_USED_PAGES] = pick(2) ? 14 : 8 + pick(9);
	sim->mm.elsewhere = 1UL << pick(20);
}

/* Returns the rule's order for a fault as if the group around it were empty and in the VMA. */
static unsigned int order_if_it_fitted(struct sim *sim, const struct vm_fault *vmf,
				       unsigned long fault)
{
	const unsigned long first = fault & -GROUP, end = SIM_BASE + ((first + GROUP) << PAGE_SHIFT);
	const struct vm_area_struct vma = sim->vma;
	const bool table = !pmd_none(*vmf->pmd);
	pte_t entries[GROUP];
	unsigned int i, order;

	for (i = 0; i < GROUP && table; i++) {
		entries[i] = *sim_pte(sim, first + i);
		*sim_pte(sim, first + i) = __pte(0);
	}
	sim->vma.vm_end = max(vma.vm_end, end);
	order = anon_order_judge(vmf, sim->knob).order;
	sim->vma = vma;
	for (i = 0; i < GROUP && table; i++)
		*sim_pte(sim, first + i) = entries[i];
	return order;
}

static struct { unsigned long small, large, unfit, edge, far; } seen;

/*
 * Compares the answers of the shortcuts and of the rule to one fault. Both start with equal
 * deferral and credit. The credit may belong to another process, which ran on this CPU before; a
 * shortcut must not change it.
 */
static void compare(struct sim *sim, unsigned long fault)
{
	const struct vm_fault vmf = {
		.vma = &sim->vma,
		.address = SIM_BASE + (fault << PAGE_SHIFT),
		.pmd = sim_pmd(sim, fault),
	};
	const struct mmp_deferral deferral = { .last = &sim->mm, .small = pick(4) ? 0 : 100 };
	static const struct mm_struct other;
	const struct mmp_credit credit = {
		pick(4) ? &sim->mm : &other,
		MMP_CREDIT_LEAST + (int)pick(384),
	};
	struct mmp_credit after;
	struct mmp_decision fast, rule;
	bool near;

	mmp_deferral = deferral;
	mmp_credit = credit;
	fast = sim->policy->anon_order(&vmf, MM_POLICY_PTE, sim->knob);
	after = mmp_credit;
	mmp_deferral = deferral;
	mmp_credit = credit;
	rule = anon_order_judge(&vmf, sim->knob);

	at("page %lu of the table, max_order %u, VMA from %ld up to %ld", fault - HERE,
	   sim->knob[MAX_ORDER], (long)(sim->vma.vm_start - SIM_BASE) / 4096 - (long)HERE,
	   (long)(sim->vma.vm_end - SIM_BASE) / 4096 - (long)HERE);
	seen.small += !fast.order;
	seen.large += fast.order > 0;
	seen.edge += fast.order && (fault % SIM_TABLE < BLOCK || fault % SIM_TABLE >= 31 * BLOCK);
	if (after.mm == &other)
		EXPECT(after.left, ==, credit.left);
	if (fast.order && rule.reason == MMP_NO_ROOM) {
		seen.unfit++;
		EXPECT(fast.order, ==, order_if_it_fitted(sim, &vmf, fault));
		return;
	}
	EXPECT(fast.order, ==, rule.order);
	/*
	 * mmp_anon_order_near() returns false only where adaptive finds no neighbour, so a policy
	 * that skips these faults misses no folio. Below, seen.far checks that it skips some.
	 */
	near = mmp_anon_order_near(&vmf);
	EXPECT(fast.reason == MMP_NO_NEIGHBOUR || near, ==, true);
	seen.far += !near;
	if (!fast.order && after.mm != &other)
		EXPECT(after.left, ==, mmp_credit.left);
}

TEST(shortcuts_of_adaptive_agree_with_its_rule)
{
	struct sim sim = {};
	unsigned long fault;
	unsigned int n;

	for (n = 0; n < FAULTS; n++) {
		if (!(n % 64))
			some_tables(&sim);
		/* One fault in four is in the first or last block of its page table. */
		fault = HERE + (pick(4) ? pick(SIM_TABLE) : (pick(2 * BLOCK) - BLOCK) % SIM_TABLE);
		if (!pmd_none(*sim_pmd(&sim, fault)) && pte_present(*sim_pte(&sim, fault)))
			continue;
		some_vma(&sim, fault);
		compare(&sim, fault);
	}
	sim_free(&sim);
	/* Each kind of answer occurred often enough. */
	EXPECT(seen.small, >, 30000);
	EXPECT(seen.large, >, 20000);
	EXPECT(seen.unfit, >, 500);
	EXPECT(seen.edge, >, 3000);
	EXPECT(seen.far, >, 500);
}
