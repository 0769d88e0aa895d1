/* SPDX-License-Identifier: GPL-2.0 */
/*
 * One VMA, its page tables, and a fault handler that works as the one of mm: it asks the policy,
 * takes the folio that fits into the VMA and into the empty entries, maps it, and leaves the
 * accessed bit of the outermost pages unset where the policy asks for that. The policy must not use
 * anything outside the VMA: tables without an entry of the VMA are out of reach, and foreign
 * entries of the other tables must not change an answer.
 */
#ifndef SIM_H
#define SIM_H

#include <linux/bitops.h>
#include <linux/mm.h>
#include <linux/mm_policy.h>
#include <linux/pgtable.h>

#include "mmpolicy.h"
#include "anon_order/anon_order.h"

/* Pages are counted from this address: the start of a page of PMDs, and of a probe block. */
#define SIM_BASE	0x7f0000000000UL
#define SIM_TABLE	512UL			/* pages of a page table */
#define SIM_PUD		(SIM_TABLE * SIM_TABLE)	/* pages of a page of PMDs */
#define SIM_PUDS	128			/* pages of PMDs, made when needed */
#define SIM_PAGES	(2 * SIM_PUD)		/* enough for tests without a recording */
#define SIM_KNOBS	8

struct mm_struct {
	unsigned long anon_pages;	/* present now, without swap */
	unsigned long elsewhere;	/* those in other VMAs */
};

struct sim {
	const struct mmp_policy *policy;
	u32 knob[SIM_KNOBS];
	struct vm_area_struct vma;
	pmd_t *pmds[SIM_PUDS];
	bool crowded;			/* the same tables hold memory of other VMAs */
	unsigned long faults;
	unsigned long looks;		/* at entries, by the policy */
	struct mm_struct mm;
	unsigned long peak;		/* of its pages */
	unsigned long folios[MMP_MAX_ORDER + 1];
	unsigned long reasons[MMP_REASONS];
};

/* No memory yet, in a large process; the knobs at their defaults. */
void sim_init(struct sim *sim, const struct mmp_policy *policy);
void sim_free(struct sim *sim);

/* The VMA is from page @start up to but not including page @end. */
void sim_vma(struct sim *sim, unsigned long start, unsigned long end);

/* Uses a page, with a fault where needed. */
void sim_touch(struct sim *sim, unsigned long page);

/* Puts a page into swap, next to that of the page before; no huge page. */
void sim_swap_out(struct sim *sim, unsigned long page);

/* Gives pages back, as munmap() does. */
void sim_unmap(struct sim *sim, unsigned long page, unsigned long n);

/* Moves pages, as mremap() does; there is nothing where they go. */
void sim_move(struct sim *sim, unsigned long from, unsigned long to, unsigned long n);

/* Forgets that a page was used, as reclaim and fork do. */
void sim_age(struct sim *sim, unsigned long page);

/* The policy's answer to a fault at a page, with nothing changed. */
unsigned int sim_cap(const struct sim *sim);
struct mmp_decision sim_ask(struct sim *sim, unsigned long page);

/* How many pages are there? */
unsigned long sim_used(struct sim *sim);

/* The entry of a page, in a table made if need be. */
pte_t *sim_pte(struct sim *sim, unsigned long page);
pmd_t *sim_pmd(struct sim *sim, unsigned long page);

#endif /* SIM_H */
