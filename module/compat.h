/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The one place for differences between kernels and architectures, named by
 * what they are.
 */
#ifndef MMPOLICY_COMPAT_H
#define MMPOLICY_COMPAT_H

#include <linux/pgtable.h>

/* What the hooks ask; without them, what provider/ asks in their place. */
#ifdef CONFIG_MM_POLICY
#include <linux/mm_policy.h>
#else
#include "mm_policy.h"
#endif

/* Without the hooks nothing knows such a flag, and the policies with it are refused. */
#ifndef __GFP_ONLY_COMPACT
#define __GFP_ONLY_COMPACT	((__force gfp_t)0)
#endif

/*
 * Is this entry a page table, and where is it? The generic way asks on x86 four
 * times whether the entry is huge.
 */
#ifdef CONFIG_X86_64
static inline bool mmp_is_table(pmd_t pmd)
{
	return (pmd_val(pmd) & (_PAGE_PRESENT | _PAGE_PSE)) == _PAGE_PRESENT;
}

static inline const pte_t *mmp_table(pmd_t pmd)
{
	return __va(pmd_val(pmd) & PTE_PFN_MASK);
}

/* Bits of an entry of a page that is there and used. No hint for NUMA has them. */
static inline bool mmp_bits_used(unsigned long bits)
{
	return !(~bits & (_PAGE_PRESENT | _PAGE_ACCESSED));
}
#else
static inline bool mmp_is_table(pmd_t pmd)
{
	return !pmd_none(pmd) && pmd_present(pmd) && !pmd_leaf(pmd) &&
	       !pmd_bad(pmd);
}

static inline const pte_t *mmp_table(pmd_t pmd)
{
	return (const pte_t *)pmd_page_vaddr(pmd);
}

static inline bool mmp_bits_used(unsigned long bits)
{
	return pte_present(__pte(bits)) && pte_young(__pte(bits));
}
#endif

/*
 * The node that a fault in @vma is to have memory of, if there is one: that of the
 * CPU, or what the memory policy of the application prefers.
 */
#ifdef CONFIG_NUMA
#define mmp_preferred_node(vma) ({					\
	const struct mempolicy *policy = (vma)->vm_policy;		\
									\
	if (!policy)							\
		policy = current->mempolicy;				\
	!policy || policy->mode == MPOL_LOCAL ? numa_node_id() :	\
	policy->mode == MPOL_PREFERRED ? first_node(policy->nodes) :	\
					 NUMA_NO_NODE;			\
})
#else
#define mmp_preferred_node(vma)	((void)(vma), numa_node_id())
#endif

/* A task of the process that @mm is of, or NULL; RCU read side. */
#ifdef CONFIG_MEMCG
#define mmp_mm_owner(mm)	rcu_dereference((mm)->owner)
#else
#define mmp_mm_owner(mm)	((mm) ? (struct task_struct *)NULL : NULL)
#endif

/* Is the anonymous memory of a process no more than that? */
#define mmp_anon_pages_within(mm, pages)				\
	(percpu_counter_compare(&(mm)->rss_stat[MM_ANONPAGES], pages) <= 0)

/* Flags of a folio that may go away any time, so without assertions. */
#define mmp_folio_flags(folio)	READ_ONCE((folio)->flags)

#endif /* MMPOLICY_COMPAT_H */
