// SPDX-License-Identifier: GPL-2.0
/* The point anon_order where there is more to decide than the order of a first touch. */
#include "anon_order.h"
#include "besides.h"
#include "table.h"

/*
 * A write to a large folio that nobody else may use any more, as after fork() and
 * exit of the child. To keep it costs nothing, so every policy wants that.
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
 * Sites that come before or after the question of a fault, so they are not counted: what
 * to map where no folio could be had, and whether a read gets memory.
 */
unsigned long mmp_anon_order_besides(const struct vm_fault *vmf,
				     enum mm_policy_site site)
{
	const struct mmp_profile *profile = mmp_profile_of(vmf->vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = anon_order_policy(settings, vmf->vma);
	struct mmp_decision d;
	const u32 *knob;

	if (!policy || anon_order_refused(vmf->vma) ||
	    (mmp_is_read(site) && !anon_order_knob(settings, MEMORY_ON_READ)))
		return MM_POLICY_STOCK;
	knob = &settings->values[policy->slot];
	d = policy->anon_order(vmf, MM_POLICY_PTE, knob);
	d = mmp_populated(policy, vmf->vma, knob, d);
	return anon_order_up_to(anon_order_lowered(settings, vmf->vma->vm_mm, d.order));
}

/* khugepaged does not look at use, so it makes none where a policy judges by that. */
static unsigned int anon_order_cap(const struct mmp_policy *policy,
				   const struct vm_area_struct *vma, const u32 *knob)
{
	if (policy->witness)
		return 0;
	if (policy->cap)
		return policy->cap(vma, knob);
	return policy->nr_knobs ? knob[0] : 0;
}

/* See &mm_policy_ops.collapse_orders: those that a fault might get. */
unsigned long mmp_collapse_orders(struct vm_area_struct *vma,
				  unsigned long orders)
{
	struct mmp_profile *profile = mmp_profile_of(vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = anon_order_policy(settings, vma);
	unsigned long refused;
	unsigned int cap;

	if (!policy)
		return orders;
	cap = anon_order_cap(policy, vma, &settings->values[policy->slot]);
	cap = anon_order_lowered(settings, vma->vm_mm, cap);
	refused = orders & ~((2UL << cap) - 1);
	if (refused)
		anon_order_count(profile, COLLAPSE_REFUSED);
	return orders & ~refused;
}
