/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tests whether a PMD points to a page table, and returns the table. The
 * generic helpers would test four times on x86 whether the entry is huge. The
 * helpers here read the entry without a paravirt call, as Xen PV does not
 * change these bits.
 */
#ifndef MMPOLICY_ARCH_X86_TABLE_H
#define MMPOLICY_ARCH_X86_TABLE_H

#include <linux/pgtable.h>

static inline bool mmp_is_table(pmd_t pmd)
{
	return (native_pmd_val(pmd) & (_PAGE_PRESENT | _PAGE_PSE)) == _PAGE_PRESENT;
}

static inline const pte_t *mmp_table(pmd_t pmd)
{
	return __va(pmd_val(pmd) & PTE_PFN_MASK);
}

/* Packs address and PRESENT/PSE of a PMD into one word, for mmp_bits_table() and mmp_table_at(). */
static inline unsigned long mmp_table_bits(pmd_t pmd)
{
	return native_pmd_val(pmd) & (PTE_PFN_MASK | _PAGE_PRESENT | _PAGE_PSE);
}

static inline bool mmp_bits_table(unsigned long bits)
{
	/* mmp_table_bits() has cleared the other bits of this byte. */
	return (u8)bits == _PAGE_PRESENT;
}

static inline const pte_t *mmp_table_at(unsigned long bits)
{
	return __va(bits - _PAGE_PRESENT);
}

/*
 * Returns the bits of an entry. Callers may combine several entries with OR or
 * AND, and test the result with the functions below.
 */
static inline unsigned long mmp_bits(pte_t pte)
{
	return native_pte_val(pte);
}

static inline bool mmp_bits_present(unsigned long bits)
{
	return bits & (_PAGE_PRESENT | _PAGE_PROTNONE);
}

static inline bool mmp_bits_young(unsigned long bits)
{
	return bits & _PAGE_ACCESSED;
}

static inline bool mmp_bits_writable(unsigned long bits)
{
	return bits & _PAGE_RW;
}

/*
 * Clears the accessed bit of a present entry; ptep_test_and_clear_young() is not exported, and may
 * change an entry that has just been swapped out. The lock of the page table need not be held.
 */
#define MMP_MAKES_OLD_UNLOCKED	true
static inline void mmp_make_old(pte_t *ptep)
{
	const unsigned long bits = READ_ONCE(ptep->pte);

	if (bits & _PAGE_PRESENT)
		cmpxchg(&ptep->pte, bits, bits & ~_PAGE_ACCESSED);
}

/* True if an entry is present and accessed; false for an entry with a NUMA hint. */
static inline bool mmp_bits_used(unsigned long bits)
{
	return !(~bits & (_PAGE_PRESENT | _PAGE_ACCESSED));
}

#endif /* MMPOLICY_ARCH_X86_TABLE_H */
