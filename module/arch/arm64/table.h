/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tests of page table entries. In a folded block (contpte), each of the 16
 * entries is read by itself.
 */
#ifndef MMPOLICY_ARCH_ARM64_TABLE_H
#define MMPOLICY_ARCH_ARM64_TABLE_H

#include "../generic/table.h"

/*
 * Reads one entry. Other tasks may change the page table at any time.
 * ptep_get_lockless() would read all 16 entries of a folded block.
 */
#define mmp_read_pte(pte)	READ_ONCE(*(pte))

/*
 * Clears the accessed bit of one entry, unless it belongs to a folded block:
 * there the CPU may set the accessed bit of any of the 16 entries, so a clear
 * bit would not tell whether this page was used. (The kernel's own helper
 * clears all bits of a folded block.)
 *
 * Context: under the page table lock.
 */
static inline void mmp_make_old(pte_t *ptep)
{
	if (!pte_cont(READ_ONCE(*ptep)))
		__ptep_test_and_clear_young(NULL, 0, ptep);
}

/*
 * True if the entry belongs to a folded block. A clear accessed bit says
 * nothing about this page then.
 */
#define mmp_bits_folded(bits)	((bits) & PTE_CONT)

#endif /* MMPOLICY_ARCH_ARM64_TABLE_H */
