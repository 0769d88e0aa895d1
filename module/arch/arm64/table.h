/* SPDX-License-Identifier: GPL-2.0 */
/* Tests of page table entries. Each entry of a folded block (contpte) is read for itself. */
#ifndef MMPOLICY_ARCH_ARM64_TABLE_H
#define MMPOLICY_ARCH_ARM64_TABLE_H

#include "../generic/table.h"

/*
 * Reads one entry. The page table may change at any time. ptep_get_lockless() reads the whole block
 * for an entry of a folded one.
 */
#define mmp_read_pte(pte)	READ_ONCE(*(pte))

/*
 * Clears the accessed bit of one entry; the helper of the kernel clears those of a folded block.
 * An entry of a folded block stays as it is: the CPU may set the accessed bit of any of the 16
 * entries, so this one would not tell whether its page was used.
 *
 * Context: under the lock of the page table.
 */
static inline void mmp_make_old(pte_t *ptep)
{
	if (!pte_cont(READ_ONCE(*ptep)))
		__ptep_test_and_clear_young(NULL, 0, ptep);
}

/* Is the entry part of a folded block? If it is old then, it tells nothing of its page. */
#define mmp_bits_folded(bits)	((bits) & PTE_CONT)

#endif /* MMPOLICY_ARCH_ARM64_TABLE_H */
