// SPDX-License-Identifier: GPL-2.0
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <string.h>

#include "anon_order/defer.h"
#include "anon_order/waste.h"
#include "check.h"
#include "sim.h"

#define LARGE	(1UL << 20)	/* pages: 4 GB */

unsigned long ptes_read;

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

static void *new_table(void)
{
	void *table = aligned_alloc(PAGE_SIZE, PAGE_SIZE);

	if (!table)
		abort();
	return memset(table, 0, PAGE_SIZE);
}

/*
 * Poisons PMD entries outside the VMA, so that ASan stops a policy that reads one: the kernel may
 * free the page tables below them at any time.
 */
static void guard_pmds(const struct sim *sim, unsigned long pud)
{
	unsigned long page = pud * SIM_PUD;
	unsigned int i;

	for (i = 0; i < PTRS_PER_PMD; i++, page += SIM_TABLE)
		if (page + SIM_TABLE <= vma_first(sim) || page > vma_last(sim))
			ASAN_POISON_MEMORY_REGION(sim->pmds[pud] + i, sizeof(pmd_t));
		else
			ASAN_UNPOISON_MEMORY_REGION(sim->pmds[pud] + i, sizeof(pmd_t));
}

pmd_t *sim_pmd(struct sim *sim, unsigned long page)
{
	unsigned long pud = page / SIM_PUD;

	if (pud >= SIM_PUDS)
		abort();
	if (!sim->pmds[pud]) {
		sim->pmds[pud] = new_table();
		if (!sim->crowded)
			guard_pmds(sim, pud);
	}
	return sim->pmds[pud] + page / SIM_TABLE % PTRS_PER_PMD;
}

void sim_init(struct sim *sim, const struct mmp_policy *policy)
{
	unsigned int i;

	*sim = (struct sim){ .policy = policy, .vma.vm_mm = &sim->mm, .mm.elsewhere = LARGE };
	/* an earlier simulation has left this state */
	if (mmp_deferral.last == &sim->mm)
		mmp_deferral = (struct mmp_deferral){};
	if (mmp_credit.mm == &sim->mm)
		mmp_credit = (struct mmp_credit){};
	for (i = 0; i < policy->nr_knobs && i < SIM_KNOBS; i++)
		sim->knob[i] = policy->knobs[i].def;
}

unsigned long get_mm_counter(struct mm_struct *mm, int member)
{
	return mm->anon_pages + mm->elsewhere;
}

static void free_pmds(pmd_t *pmds)
{
	unsigned int i;

	ASAN_UNPOISON_MEMORY_REGION(pmds, PAGE_SIZE);
	for (i = 0; i < PTRS_PER_PMD; i++)
		if (!pmd_none(pmds[i]) && !pmd_leaf(pmds[i]))
			free((void *)pmd_page_vaddr(pmds[i]));
	free(pmds);
}

void sim_free(struct sim *sim)
{
	unsigned int i;

	for (i = 0; i < SIM_PUDS; i++)
		if (sim->pmds[i])
			free_pmds(sim->pmds[i]);
}

void sim_vma(struct sim *sim, unsigned long start, unsigned long end)
{
	unsigned int i;

	sim->vma.vm_start = SIM_BASE + (start << PAGE_SHIFT);
	sim->vma.vm_end = SIM_BASE + (end << PAGE_SHIFT);
	for (i = 0; i < SIM_PUDS && !sim->crowded; i++)
		if (sim->pmds[i])
			guard_pmds(sim, i);
}

pte_t *sim_pte(struct sim *sim, unsigned long page)
{
	pmd_t *pmd = sim_pmd(sim, page);

	if (pmd_none(*pmd))
		*pmd = __pmd((unsigned long)new_table() | _PAGE_TABLE);
	return (pte_t *)pmd_page_vaddr(*pmd) + page % SIM_TABLE;
}

static bool in_swap(pte_t pte)
{
	return !pte_none(pte) && !pte_present(pte);
}

/* Sets the entries outside the VMA to @pte, in the page tables near a page. */
static void fill_outside(struct sim *sim, unsigned long page, pte_t pte)
{
	unsigned long first = page & -SIM_TABLE, last = first + 2 * SIM_TABLE - 1, i;

	first -= min(first, SIM_TABLE);
	first = max(first, vma_first(sim) & -SIM_TABLE);
	last = min(last, vma_last(sim) | (SIM_TABLE - 1));
	for (i = first; i <= last; i++) {
		if (i >= vma_first(sim) && i <= vma_last(sim))
			i = vma_last(sim) + 1;
		if (i <= last && !pmd_none(*sim_pmd(sim, i)) && !pmd_leaf(*sim_pmd(sim, i)))
			*sim_pte(sim, i) = pte;
	}
}

/* Returns the largest order that khugepaged may use under the policy. */
unsigned int sim_cap(const struct sim *sim)
{
	if (sim->policy->cap)
		return sim->policy->cap(&sim->vma, sim->knob);
	return sim->policy->nr_knobs ? sim->knob[0] : 0;
}

static struct mmp_decision decide(const struct sim *sim, const struct vm_fault *vmf,
				  enum mm_policy_site site)
{
	return mmp_mlock_override(sim->policy, vmf->vma, sim->knob,
			     sim->policy->anon_order(vmf, site, sim->knob));
}

/*
 * Asks the policy about a fault, checks the answer, and returns it. The policy may read entries of
 * other VMAs in these page tables, but they must not change its answer.
 */
static struct mmp_decision ask(struct sim *sim, unsigned long page,
			       enum mm_policy_site site)
{
	struct vm_fault vmf = {
		.vma = &sim->vma,
		.address = SIM_BASE + (page << PAGE_SHIFT),
		.pmd = sim_pmd(sim, page),
	};
	const struct mmp_deferral deferral = mmp_deferral;
	const struct mmp_credit credit = mmp_credit;
	struct mmp_decision d, other;
	unsigned long before;

	if (!sim->crowded) {
		fill_outside(sim, page, __pte(MAPPED));
		other = decide(sim, &vmf, site);
		fill_outside(sim, page, __pte(0));
		mmp_deferral = deferral;
		mmp_credit = credit;
	}
	before = ptes_read;
	d = decide(sim, &vmf, site);
	sim->looks += ptes_read - before;
	if (!sim->crowded) {
		EXPECT(d.order, ==, other.order);
	}
	/* Checks that hold for each answer of each policy. */
	EXPECT(d.order, <=, sim_cap(sim));
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

/* Returns the order that the policy requests for a fault, and counts its reason. */
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

/*
 * Returns true if a folio of @order may be mapped around the faulting page: all its entries are
 * empty, or hold consecutive swap entries.
 */
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

static void add_pages(struct sim *sim, unsigned int order)
{
	sim->folios[order]++;
	sim->mm.anon_pages += BIT(order);
	sim->peak = max(sim->peak, sim->mm.anon_pages);
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
	add_pages(sim, order);
}

static bool fault_pmd(struct sim *sim, unsigned long page)
{
	if (order_for(sim, page, MM_POLICY_PMD) < MMP_MAX_ORDER ||
	    !fits_vma(sim, page, MMP_MAX_ORDER))
		return false;
	*sim_pmd(sim, page) = __pmd(MAPPED | _PAGE_PSE);
	add_pages(sim, MMP_MAX_ORDER);
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

/* Splits a huge page, as the kernel does before it unmaps a part of it. */
static void split(struct sim *sim, unsigned long page)
{
	pmd_t *pmd = sim_pmd(sim, page), huge = *pmd;
	unsigned int i;

	if (!pmd_leaf(huge))
		return;
	*pmd = __pmd(0);
	for (i = 0; i < SIM_TABLE; i++)
		*sim_pte(sim, (page & -SIM_TABLE) + i) = __pte(huge.pmd & ~_PAGE_PSE);
}

static pte_t take(struct sim *sim, unsigned long page)
{
	pte_t pte = __pte(0), *entry;

	split(sim, page);
	if (pmd_none(*sim_pmd(sim, page)))
		return pte;
	entry = sim_pte(sim, page);
	pte = *entry;
	*entry = __pte(0);
	return pte;
}

void sim_unmap(struct sim *sim, unsigned long page, unsigned long n)
{
	unsigned long end = page + n;

	while (page < end) {
		pmd_t *pmd = sim_pmd(sim, page);

		if (pmd_none(*pmd)) {
			page = (page | (SIM_TABLE - 1)) + 1;
		} else if (pmd_leaf(*pmd) && !(page % SIM_TABLE) && end - page >= SIM_TABLE) {
			*pmd = __pmd(0);
			sim->mm.anon_pages -= SIM_TABLE;
			page += SIM_TABLE;
		} else {
			sim->mm.anon_pages -= pte_present(take(sim, page++));
		}
	}
}

void sim_move(struct sim *sim, unsigned long from, unsigned long to, unsigned long n)
{
	while (n--) {
		pte_t pte = take(sim, from++);

		if (!pte_none(pte))
			*sim_pte(sim, to) = pte;
		to++;
	}
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
		used += pte_present(table[i]);
	return used;
}

unsigned long sim_used(struct sim *sim)
{
	unsigned long page, used = 0;

	for (page = vma_first(sim) & -SIM_TABLE; page <= vma_last(sim); page += SIM_TABLE)
		used += used_below(*sim_pmd(sim, page));
	return used;
}
