/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tests of page table entries with the kernel's generic helpers. The unit tests
 * use them, too.
 */
#ifndef MMPOLICY_ARCH_GENERIC_TABLE_H
#define MMPOLICY_ARCH_GENERIC_TABLE_H

#include <linux/pgtable.h>

static inline bool mmp_is_table(pmd_t pmd)
{
	return !pmd_none(pmd) && pmd_present(pmd) && !pmd_leaf(pmd) &&
	       !pmd_bad(pmd);
}

static inline const pte_t *mmp_table(pmd_t pmd)
{
	return (const pte_t *)pmd_page_vaddr(pmd);
}

static inline unsigned long mmp_table_bits(pmd_t pmd)
{
	return pmd_val(pmd);
}

static inline bool mmp_bits_table(unsigned long bits)
{
	return mmp_is_table(__pmd(bits));
}

static inline const pte_t *mmp_table_at(unsigned long bits)
{
	return mmp_table(__pmd(bits));
}

static inline unsigned long mmp_bits(pte_t pte)
{
	return pte_val(pte);
}

static inline bool mmp_bits_present(unsigned long bits)
{
	return pte_present(__pte(bits));
}

static inline bool mmp_bits_young(unsigned long bits)
{
	return pte_young(__pte(bits));
}

static inline bool mmp_bits_writable(unsigned long bits)
{
	return pte_write(__pte(bits));
}

static inline bool mmp_bits_used(unsigned long bits)
{
	return mmp_bits_present(bits) && mmp_bits_young(bits);
}

#endif /* MMPOLICY_ARCH_GENERIC_TABLE_H */
