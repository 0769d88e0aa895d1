/* SPDX-License-Identifier: GPL-2.0 */
/* Page table entries with the bits of x86-64, but with virtual addresses of page tables. */
#ifndef SHIM_PGTABLE_H
#define SHIM_PGTABLE_H

#include <linux/mm_types.h>

#define PTRS_PER_PTE	512
#define PTRS_PER_PMD	512
#define PMD_SHIFT	21
#define PMD_SIZE	(1UL << PMD_SHIFT)
#define PMD_MASK	(~(PMD_SIZE - 1))
#define PUD_SHIFT	30
#define PUD_SIZE	(1UL << PUD_SHIFT)
#define PUD_MASK	(~(PUD_SIZE - 1))

#define _PAGE_PRESENT	0x001UL
#define _PAGE_RW	0x002UL
#define _PAGE_USER	0x004UL
#define _PAGE_ACCESSED	0x020UL
#define _PAGE_DIRTY	0x040UL
#define _PAGE_PSE	0x080UL
#define _PAGE_PROTNONE	0x100UL
#define _PAGE_TABLE	(_PAGE_PRESENT | _PAGE_RW | _PAGE_USER | \
			 _PAGE_ACCESSED | _PAGE_DIRTY)

#define __pte(x)	((pte_t){ x })
#define pte_val(x)	((x).pte)
#define __pmd(x)	((pmd_t){ x })
#define pmd_val(x)	((x).pmd)

static inline unsigned long pte_index(unsigned long addr)
{
	return (addr >> PAGE_SHIFT) & (PTRS_PER_PTE - 1);
}

static inline unsigned long pmd_index(unsigned long addr)
{
	return (addr >> PMD_SHIFT) & (PTRS_PER_PMD - 1);
}

static inline bool pte_none(pte_t pte)
{
	return !(pte.pte & ~(_PAGE_DIRTY | _PAGE_ACCESSED));
}

static inline bool pte_present(pte_t pte)
{
	return pte.pte & (_PAGE_PRESENT | _PAGE_PROTNONE);
}

static inline bool pte_young(pte_t pte)
{
	return pte.pte & _PAGE_ACCESSED;
}

static inline bool pte_write(pte_t pte)
{
	return pte.pte & _PAGE_RW;
}

extern unsigned long ptes_read;

#define data_race(x)	(ptes_read++, (x))

static inline pte_t ptep_get_lockless(pte_t *ptep)
{
	ptes_read++;
	return READ_ONCE(*ptep);
}

static inline bool pmd_none(pmd_t pmd)
{
	return !(pmd.pmd & ~(_PAGE_DIRTY | _PAGE_ACCESSED));
}

static inline bool pmd_present(pmd_t pmd)
{
	return pmd.pmd & (_PAGE_PRESENT | _PAGE_PROTNONE | _PAGE_PSE);
}

static inline bool pmd_leaf(pmd_t pmd)
{
	return pmd.pmd & _PAGE_PSE;
}

static inline bool pmd_young(pmd_t pmd)
{
	return pmd.pmd & _PAGE_ACCESSED;
}

static inline bool pmd_bad(pmd_t pmd)
{
	return (pmd.pmd & ~PAGE_MASK & ~(_PAGE_USER | _PAGE_ACCESSED)) !=
	       (_PAGE_PRESENT | _PAGE_RW | _PAGE_DIRTY);
}

static inline unsigned long pmd_page_vaddr(pmd_t pmd)
{
	return pmd.pmd & PAGE_MASK;
}

static inline pmd_t pmdp_get_lockless(pmd_t *pmdp)
{
	return READ_ONCE(*pmdp);
}

#endif /* SHIM_PGTABLE_H */
