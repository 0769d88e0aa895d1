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

/* Clears the accessed bit of one entry; the kernel's helper clears those of a folded block. */
static inline void mmp_make_old(pte_t *ptep)
{
	__ptep_test_and_clear_young(NULL, 0, ptep);
}

#endif /* MMPOLICY_ARCH_ARM64_TABLE_H */
