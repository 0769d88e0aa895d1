/* SPDX-License-Identifier: GPL-2.0 */
/*
 * One VMA, its page tables, and a fault handler that works as mm's: it asks the
 * policy, takes the largest folio up to the answer that fits into the VMA and
 * into empty entries, maps it, and clears the accessed bits of its first and
 * last page if the policy asks for that. A policy must not depend on anything
 * outside the VMA: PMD entries outside are poisoned, and foreign entries in the
 * VMA's page tables must not change an answer.
 */
#ifndef SIM_H
#define SIM_H

#include <linux/bitops.h>
#include <linux/mm.h>
#include <linux/mm_policy.h>
#include <linux/pgtable.h>

#include "mmpolicy.h"
#include "anon_order/anon_order.h"

/* Address of page 0; it begins a page of PMDs, and a probe block. */
#define SIM_BASE	0x7f0000000000UL
/* pages that one page table maps */
#define SIM_TABLE	512UL
/* pages that one page of PMDs maps */
#define SIM_PUD		(SIM_TABLE * SIM_TABLE)
/* most pages of PMDs of a simulation, each made when needed */
#define SIM_PUDS	1024
#define SIM_PAGES	(2 * SIM_PUD)		/* address space of tests without recordings */
#define SIM_KNOBS	8

struct mm_struct {
	unsigned long anon_pages;	/* present pages that the simulation has mapped */
	unsigned long elsewhere;	/* further anonymous pages of the process */
};

struct sim {
	const struct mmp_policy *policy;
	u32 knob[SIM_KNOBS];
	struct vm_area_struct vma;
	pmd_t *pmds[SIM_PUDS];
	bool crowded;			/* the page tables may also map other VMAs */
	unsigned long faults;
	unsigned long looks;		/* page table entries read by the policy */
	struct mm_struct mm;
	unsigned long peak;		/* largest mm.anon_pages so far */
	unsigned long folios[MMP_MAX_ORDER + 1];
	unsigned long reasons[MMP_REASONS];
};

/*
 * Initializes @sim with an empty VMA, in a process that has 4 GB in other VMAs.
 * All knobs are at their defaults.
 */
void sim_init(struct sim *sim, const struct mmp_policy *policy);
void sim_free(struct sim *sim);

/* Sets the VMA to the pages from @start up to, not including, @end. */
void sim_vma(struct sim *sim, unsigned long start, unsigned long end);

/* Accesses a page; it faults if the page is not present. */
void sim_touch(struct sim *sim, unsigned long page);

/*
 * Swaps a page out. Neighbouring pages get neighbouring swap slots. Does
 * nothing for a huge page.
 */
void sim_swap_out(struct sim *sim, unsigned long page);

/* Unmaps pages, like munmap(). */
void sim_unmap(struct sim *sim, unsigned long page, unsigned long n);

/* Moves pages, like mremap(), to a range without pages. */
void sim_move(struct sim *sim, unsigned long from, unsigned long to, unsigned long n);

/* Clears the accessed bit of a page, like reclaim and fork(). */
void sim_age(struct sim *sim, unsigned long page);

/* Returns the largest order that the policy may request in the VMA. */
unsigned int sim_cap(const struct sim *sim);

/*
 * Returns the policy's answer to a fault at a page, without handling the fault.
 */
struct mmp_decision sim_ask(struct sim *sim, unsigned long page);

/* Returns the number of present pages. */
unsigned long sim_used(struct sim *sim);

/*
 * Returns the page table entry of a page; makes its page table if there is
 * none.
 */
pte_t *sim_pte(struct sim *sim, unsigned long page);
pmd_t *sim_pmd(struct sim *sim, unsigned long page);

#endif /* SIM_H */
