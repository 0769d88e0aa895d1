// SPDX-License-Identifier: GPL-2.0
/*
 * anon_order at the sites that only large-folio-faults/ has (a folio is reused, single pages are
 * mapped, a read gets memory), and for khugepaged.
 */
#include "../sense/pmd.h"
#include "anon_order.h"
#include "other_sites.h"
#include "table.h"

/*
 * A write to a large folio that is exclusive again, as after fork() and exit of the
 * child. Keeping it costs nothing, so every policy does.
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
 * These sites come before or after the question of a fault, so they are not counted: what to
 * map where no folio could be had, and whether a read gets memory. Only a read of the program
 * itself does, not one of the kernel, such as for MADV_POPULATE_READ or a virtual machine.
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
 * khugepaged does not look at use, so it gets a range of a policy that judges by that only
 * if each page in it is there and was used: then a huge page takes no more memory.
 */
static bool anon_order_all_used(const struct vm_area_struct *vma, unsigned long addr)
{
	unsigned long end = addr + PMD_SIZE;
	const pmd_t pmd = mmp_pmd_at(vma->vm_mm, addr, &end);
	unsigned int i;

	if (!mmp_is_table(pmd))
		return true;	/* there is nothing to be collapsed */
	for (i = 0; i < PTRS_PER_PTE; i++) {
		const pte_t pte = mmp_pte(mmp_table(pmd), i);

		/* The zero page is mapped read only, and takes no memory. */
		if (mmp_page_of(pte) != MMP_USED || pte_special(pte))
			return false;
	}
	return true;
}

/* The largest order that khugepaged may make at @addr. */
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
 * See &mm_policy_ops.collapse_orders. khugepaged may make the sizes that a fault may get; under a
 * policy that judges by use, only of a range that was used in full.
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
