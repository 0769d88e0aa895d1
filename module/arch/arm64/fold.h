/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Entries for contpte_set_ptes() and __contpte_try_fold(), and the C functions
 * that these entries call.
 */
#ifndef MMPOLICY_ARCH_ARM64_FOLD_H
#define MMPOLICY_ARCH_ARM64_FOLD_H

#include <linux/mm.h>

void mmp_entry_fold(void);
extern unsigned long mmp_back_fold[];
notrace bool mmp_wants_set_ptes(struct mm_struct *mm, unsigned long addr, pte_t *ptep, pte_t pte,
				unsigned int nr);
void mmp_replace_set_ptes(struct mm_struct *mm, unsigned long addr, pte_t *ptep, pte_t pte,
			  unsigned int nr);
notrace bool mmp_wants_unfolded(struct mm_struct *mm, unsigned long addr, pte_t *ptep, pte_t pte);
void mmp_replace_try_fold(struct mm_struct *mm, unsigned long addr, pte_t *ptep, pte_t pte);

#endif /* MMPOLICY_ARCH_ARM64_FOLD_H */
