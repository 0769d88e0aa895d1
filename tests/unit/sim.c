// SPDX-License-Identifier: GPL-2.0
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "sim.h"

#define TOUCHED		(_PAGE_ACCESSED | _PAGE_DIRTY)
#define MAPPED		(_PAGE_PRESENT | _PAGE_RW | _PAGE_USER | TOUCHED)

static unsigned long vma_first(const struct sim *sim)
{
	return (sim->vma.vm_start - SIM_BASE) >> PAGE_SHIFT;
}

static unsigned long vma_last(const struct sim *sim)
{
	return ((sim->vma.vm_end - SIM_BASE) >> PAGE_SHIFT) - 1;
}

/*
 * Poisons of a table of 8-byte entries those outside first..last; entry 0 is
 * number @base, and each next one @step further.
 */
static void guard(void *table, unsigned long base, unsigned long step,
		  unsigned long first, unsigned long last)
{
	unsigned long *entry = table;
	unsigned long i;

	for (i = 0; i < PTRS_PER_PTE; i++, base += step) {
		if (base + step - 1 < first || base > last)
			__asan_poison_memory_region(entry + i, sizeof(*entry));
		else
			__asan_unpoison_memory_region(entry + i, sizeof(*entry));
	}
}

static void *new_table(void)
{
	void *table = aligned_alloc(PAGE_SIZE, PAGE_SIZE);

	if (!table)
		abort();
	return memset(table, 0, PAGE_SIZE);
}

static void guard_table(struct sim *sim, pmd_t pmd, unsigned long page)
{
	guard((void *)pmd_page_vaddr(pmd), page & -SIM_TABLE, 1,
	      vma_first(sim), vma_last(sim));
}

static void guard_pmds(struct sim *sim, unsigned int i)
{
	guard(sim->pmds[i], i * SIM_PUD, SIM_TABLE, vma_first(sim), vma_last(sim));
}

void sim_init(struct sim *sim, const struct mmp_policy *policy)
{
	unsigned int i;

	*sim = (struct sim){ .policy = policy };
	for (i = 0; i < policy->nr_knobs && i < SIM_KNOBS; i++)
		sim->knob[i] = policy->knobs[i].def;
	for (i = 0; i < ARRAY_SIZE(sim->pmds); i++)
		sim->pmds[i] = new_table();
}

/* Calls back for each page table and each huge page. */
static void for_each_pmd(struct sim *sim, void (*call)(struct sim *sim, pmd_t pmd,
						       unsigned long page))
{
	unsigned long page;

	for (page = 0; page < SIM_PAGES; page += SIM_TABLE) {
		pmd_t *pmds = sim->pmds[page / SIM_PUD];
		pmd_t pmd = pmds[page / SIM_TABLE % PTRS_PER_PMD];

		if (!pmd_none(pmd))
			call(sim, pmd, page);
	}
}

static void unguard_all(struct sim *sim)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(sim->pmds); i++)
		guard(sim->pmds[i], 0, 1, 0, SIM_PAGES);
}

static void free_table(struct sim *sim, pmd_t pmd, unsigned long page)
{
	if (!pmd_leaf(pmd))
		free((void *)pmd_page_vaddr(pmd));
}

void sim_free(struct sim *sim)
{
	unsigned int i;

	unguard_all(sim);
	for_each_pmd(sim, free_table);
	for (i = 0; i < ARRAY_SIZE(sim->pmds); i++)
		free(sim->pmds[i]);
}

static void guard_one(struct sim *sim, pmd_t pmd, unsigned long page)
{
	if (!pmd_leaf(pmd))
		guard_table(sim, pmd, page);
}

void sim_vma(struct sim *sim, unsigned long start, unsigned long end)
{
	unsigned int i;

	sim->vma.vm_start = SIM_BASE + (start << PAGE_SHIFT);
	sim->vma.vm_end = SIM_BASE + (end << PAGE_SHIFT);
	unguard_all(sim);
	for_each_pmd(sim, guard_one);
	for (i = 0; i < ARRAY_SIZE(sim->pmds); i++)
		guard_pmds(sim, i);
}

pmd_t *sim_pmd(struct sim *sim, unsigned long page)
{
	return sim->pmds[page / SIM_PUD] + page / SIM_TABLE % PTRS_PER_PMD;
}

pte_t *sim_pte(struct sim *sim, unsigned long page)
{
	pmd_t *pmd = sim_pmd(sim, page);

	if (pmd_none(*pmd)) {
		*pmd = __pmd((unsigned long)new_table() | _PAGE_TABLE);
		guard_table(sim, *pmd, page);
	}
	return (pte_t *)pmd_page_vaddr(*pmd) + page % SIM_TABLE;
}

static bool in_swap(pte_t pte)
{
	return !pte_none(pte) && !pte_present(pte);
}

static struct mmp_decision ask(struct sim *sim, unsigned long page,
			       enum mm_policy_site site)
{
	struct vm_fault vmf = {
		.vma = &sim->vma,
		.address = SIM_BASE + (page << PAGE_SHIFT),
		.pmd = sim_pmd(sim, page),
	};
	struct mmp_decision d = sim->policy->anon_order(&vmf, site, sim->knob);

	/* Each answer of each policy, whatever is tested otherwise. */
	EXPECT(d.order, <=, sim->policy->nr_knobs ? sim->knob[0] : 0);
	EXPECT(d.reason, <, MMP_REASONS);
	return d;
}

struct mmp_decision sim_ask(struct sim *sim, unsigned long page)
{
	if (pmd_none(*sim_pmd(sim, page)))
		return ask(sim, page, MM_POLICY_PMD);
	return ask(sim, page, in_swap(*sim_pte(sim, page)) ? MM_POLICY_SWAPIN :
							      MM_POLICY_PTE);
}

/* As ask(), and counts. */
static unsigned int order_for(struct sim *sim, unsigned long page,
			      enum mm_policy_site site)
{
	struct mmp_decision d = ask(sim, page, site);

	sim->reasons[d.reason]++;
	return d.order;
}

static bool fits_vma(const struct sim *sim, unsigned long page, unsigned int order)
{
	unsigned long first = page >> order << order;

	return first >= vma_first(sim) && first + BIT(order) - 1 <= vma_last(sim);
}

/* Are all entries as the one that faulted: empty, or in swap in a row? */
static bool same_entries(struct sim *sim, unsigned long page, unsigned int order)
{
	unsigned long first = page >> order << order, i;
	pte_t faulted = *sim_pte(sim, page);

	for (i = first; i < first + BIT(order); i++) {
		pte_t pte = *sim_pte(sim, i);

		if (pte_none(faulted) ? !pte_none(pte) :
		    pte.pte - faulted.pte != (i - page) << PAGE_SHIFT)
			return false;
	}
	return true;
}

static void map(struct sim *sim, unsigned long page, unsigned int order)
{
	unsigned long first = page >> order << order;
	unsigned long last = first + BIT(order) - 1, i;

	for (i = first; i <= last; i++)
		*sim_pte(sim, i) = __pte(MAPPED);
	if (sim->policy->witness && first != page)
		sim_age(sim, first);
	if (sim->policy->witness && last != page)
		sim_age(sim, last);
	sim->folios[order]++;
}

static bool fault_pmd(struct sim *sim, unsigned long page)
{
	if (order_for(sim, page, MM_POLICY_PMD) < MMP_MAX_ORDER ||
	    !fits_vma(sim, page, MMP_MAX_ORDER))
		return false;
	*sim_pmd(sim, page) = __pmd(MAPPED | _PAGE_PSE);
	sim->folios[MMP_MAX_ORDER]++;
	return true;
}

static void fault(struct sim *sim, unsigned long page)
{
	enum mm_policy_site site;
	unsigned int order;

	sim->faults++;
	if (pmd_none(*sim_pmd(sim, page)) && fault_pmd(sim, page))
		return;
	site = in_swap(*sim_pte(sim, page)) ? MM_POLICY_SWAPIN : MM_POLICY_PTE;
	order = min(order_for(sim, page, site), MMP_MAX_ORDER - 1U);
	while (order && (order < MMP_MIN_ORDER || !fits_vma(sim, page, order) ||
			 !same_entries(sim, page, order)))
		order--;
	map(sim, page, order);
}

static bool touch_huge(pmd_t *pmd)
{
	if (!pmd_leaf(*pmd))
		return false;
	pmd->pmd |= TOUCHED;
	return true;
}

void sim_touch(struct sim *sim, unsigned long page)
{
	pmd_t *pmd = sim_pmd(sim, page);

	if (touch_huge(pmd))
		return;
	if (pmd_none(*pmd) || !pte_present(*sim_pte(sim, page)))
		fault(sim, page);
	if (!touch_huge(pmd))
		sim_pte(sim, page)->pte |= TOUCHED;
}

void sim_swap_out(struct sim *sim, unsigned long page)
{
	if (!pmd_leaf(*sim_pmd(sim, page)))
		*sim_pte(sim, page) = __pte((page + 1) << PAGE_SHIFT);
}

void sim_age(struct sim *sim, unsigned long page)
{
	pmd_t *pmd = sim_pmd(sim, page);

	if (pmd_leaf(*pmd))
		pmd->pmd &= ~_PAGE_ACCESSED;
	else
		sim_pte(sim, page)->pte &= ~_PAGE_ACCESSED;
}

static unsigned long used_below(pmd_t pmd)
{
	const pte_t *table = (const pte_t *)pmd_page_vaddr(pmd);
	unsigned long used = 0;
	int i;

	if (pmd_none(pmd))
		return 0;
	if (pmd_leaf(pmd))
		return SIM_TABLE;
	for (i = 0; i < PTRS_PER_PTE; i++)
		if (!__asan_address_is_poisoned(table + i))
			used += pte_present(table[i]);
	return used;
}

unsigned long sim_used(const struct sim *sim)
{
	unsigned long page, used = 0;

	for (page = vma_first(sim) & -SIM_TABLE; page <= vma_last(sim); page += SIM_TABLE)
		used += used_below(sim->pmds[page / SIM_PUD][page / SIM_TABLE % PTRS_PER_PMD]);
	return used;
}
