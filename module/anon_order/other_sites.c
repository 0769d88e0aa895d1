// SPDX-License-Identifier: GPL-2.0
/*
 * Answers of the point anon_order other than for a first touch. Only a kernel
 * with the patches of large-folio-faults/ asks about writes that reuse a folio,
 * about mapping single pages, and about reads. Every kernel asks about
 * collapses by khugepaged.
 */
#include "../sense/pmd.h"
#include "anon_order.h"
#include "other_sites.h"
#include "table.h"

/*
 * Answers a write to a large folio that only this process still maps, for
 * example after fork() and exit of the child. Reusing the folio costs no
 * memory, so the module allows it under every policy.
 */
unsigned long mmp_anon_order_reuse(struct vm_area_struct *vma)
{
	const struct mmp_profile *profile = mmp_profile_of(vma->vm_mm);

	if (!anon_order_policy(rcu_dereference(profile->settings), vma) ||
	    anon_order_refused(vma))
		return MM_POLICY_STOCK;
	anon_order_count(profile, REUSE);
	return anon_order_up_to(PMD_ORDER);
}

/*
 * Answers two questions other than the order of a first touch: how many pages
 * to map if no large folio could be allocated, and whether a read maps memory
 * or the zero page. A read maps memory only if user space reads; reads by the
 * kernel, as for MADV_POPULATE_READ or a virtual machine, keep the zero page.
 * Another call counts the fault, so this function counts nothing.
 */
unsigned long mmp_anon_order_other_site(const struct vm_fault *vmf,
					enum mm_policy_site site)
{
	const struct mmp_profile *profile = mmp_profile_of(vmf->vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = anon_order_policy(settings, vmf->vma);
	struct mmp_decision d;
	const u32 *knob;

	if (!policy || anon_order_refused(vmf->vma) ||
	    (mmp_is_read(site) && !(anon_order_knob(settings, MEMORY_ON_READ) &&
				    vmf->flags & FAULT_FLAG_USER)))
		return MM_POLICY_STOCK;
	knob = &settings->values[policy->slot];
	d = policy->anon_order(vmf, MM_POLICY_PTE, knob);
	d = mmp_mlock_override(policy, vmf->vma, knob, d);
	if (d.order == MMP_ORDER_STOCK)
		return MM_POLICY_STOCK;
	return anon_order_up_to(anon_order_lowered(settings, vmf->vma, d.order));
}

/*
 * A range of 2 MB counts as used in full if at most this many of its 512 pages
 * are missing or unused, so that a huge page takes 3 % more memory at most.
 * Allocators skip some pages at the edges of their arenas: none of the ranges of
 * a large heap of Python is without such pages.
 */
#define MMP_UNUSED_MOST		(PTRS_PER_PTE / 32)

/*
 * Returns true if nearly every page of the 2 MB range at @addr is present and
 * used. khugepaged itself ignores accessed bits, so under a policy that decides
 * by use it may collapse only such ranges.
 */
static bool anon_order_all_used(const struct vm_area_struct *vma, unsigned long addr)
{
	unsigned long end = addr + PMD_SIZE;
	const pmd_t pmd = mmp_pmd_at(vma->vm_mm, addr, &end);
	unsigned int i, unused = 0;

	if (!mmp_is_table(pmd))
		return true;	/* no page table, so nothing to collapse */
	for (i = 0; i < PTRS_PER_PTE && unused <= MMP_UNUSED_MOST; i++) {
		const pte_t pte = mmp_pte(mmp_table(pmd), i);

		/* The zero page is mapped read-only and takes no memory. */
		unused += mmp_page_of(pte) != MMP_USED || pte_special(pte);
	}
	return unused <= MMP_UNUSED_MOST;
}

/*
 * Returns the largest order to which khugepaged may collapse at @addr; 0: none.
 */
static unsigned int anon_order_cap(const struct mmp_policy *policy,
				   const struct vm_area_struct *vma, unsigned long addr,
				   const u32 *knob)
{
	if (policy->witness)
		return anon_order_all_used(vma, addr) ? PMD_ORDER : 0;
	if (policy->cap)
		return policy->cap(vma, knob);
	return policy->nr_knobs ? knob[0] : 0;
}

/*
 * Implements &mm_policy_ops.collapse_orders: returns a bitmap of orders.
 * khugepaged may collapse to the sizes that a fault may get. Under a policy
 * that decides by use, it may collapse only a range that was used in full.
 */
unsigned long mmp_collapse_orders(struct vm_area_struct *vma, unsigned long addr)
{
	struct mmp_profile *profile = mmp_profile_of(vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = anon_order_policy(settings, vma);
	unsigned int cap;

	if (!policy)
		return ~0UL;
	cap = anon_order_cap(policy, vma, addr, &settings->values[policy->slot]);
	cap = anon_order_lowered(settings, vma, cap);
	if (cap < PMD_ORDER)
		anon_order_count(profile, COLLAPSE_REFUSED);
	return (2UL << cap) - 1;
}
