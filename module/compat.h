/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The one place for differences between kernels and architectures, named by
 * what they are.
 */
#ifndef MMPOLICY_COMPAT_H
#define MMPOLICY_COMPAT_H

#include <linux/pgtable.h>

#ifndef CONFIG_MM_POLICY
#error "This kernel lacks CONFIG_MM_POLICY: apply kernel-hooks/ and enable it"
#endif

/*
 * mmp_table - the page table below an entry, NULL if it is not a table. The
 * generic way asks on x86 four times whether the entry is huge.
 */
static inline const pte_t *mmp_table(pmd_t pmd)
{
#ifdef CONFIG_X86_64
	if ((pmd_val(pmd) & (_PAGE_PRESENT | _PAGE_PSE)) != _PAGE_PRESENT)
		return NULL;
	return __va(pmd_val(pmd) & PTE_PFN_MASK);
#else
	return pmd_bad(pmd) ? NULL : (const pte_t *)pmd_page_vaddr(pmd);
#endif
}

#endif /* MMPOLICY_COMPAT_H */
