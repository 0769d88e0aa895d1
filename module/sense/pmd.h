/* SPDX-License-Identifier: GPL-2.0 */
/* Reads the PMD entry of any address of a process, also outside of a page fault. */
#ifndef MMPOLICY_PMD_H
#define MMPOLICY_PMD_H

#include <linux/mm.h>
#include <linux/pgtable.h>

/**
 * mmp_pmd_at - read the PMD entry of an address
 * @mm: its address space
 * @addr: the address
 * @end: end of the caller's range; lowered to the end of the range that the entry covers, or
 *	that an empty entry at a higher level covers
 *
 * Context: under a lock that keeps the VMA of @addr; RCU read side, as some kernels free empty
 *	page tables.
 * Return: the entry; an empty one in a hole, and where a larger page is mapped.
 */
static inline pmd_t mmp_pmd_at(struct mm_struct *mm, unsigned long addr, unsigned long *end)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t *pud;

	*end = pgd_addr_end(addr, *end);
	if (pgd_none(READ_ONCE(*pgd)))
		return __pmd(0);
	p4d = p4d_offset(pgd, addr);
	*end = p4d_addr_end(addr, *end);
	if (p4d_none(READ_ONCE(*p4d)))
		return __pmd(0);
	pud = pud_offset(p4d, addr);
	*end = pud_addr_end(addr, *end);
	if (pud_none(READ_ONCE(*pud)) || pud_leaf(READ_ONCE(*pud)))
		return __pmd(0);
	*end = pmd_addr_end(addr, *end);
	return pmdp_get_lockless(pmd_offset(pud, addr));
}

#endif /* MMPOLICY_PMD_H */
