// SPDX-License-Identifier: GPL-2.0
/* The point anon_order: folio order of anonymous faults. */
#include <linux/timex.h>

#include "../sense/draw.h"
#include "../sense/fault_time.h"
#include "../trace.h"
#include "anon_order.h"
#include "besides.h"
#include "shadow.h"
#include "table.h"

static struct mmp_decision anon_order_measure(const struct mmp_profile *profile,
					      const struct mmp_policy *policy,
					      const struct vm_fault *vmf,
					      enum mm_policy_site site, const u32 *knob)
{
	cycles_t begin = get_cycles();
	struct mmp_decision d = policy->anon_order(vmf, site, knob);

	mmp_count(profile, &mmp_point_anon_order, COST_TICKS,
		  get_cycles() - begin);
	anon_order_count(profile, COST_SAMPLES);
	return d;
}

static noinline unsigned long anon_order_large(const struct mmp_profile *profile,
					       const struct vm_fault *vmf,
					       enum mm_policy_site site,
					       struct mmp_decision d)
{
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	u64 __percpu *counter = anon_order_counters(profile);
	unsigned int order;

	if (mmp_thp_disabled(vmf->vma))
		return MM_POLICY_STOCK;
	if (mmp_is_copy(site))
		d.order = min(d.order, anon_order_knob(settings, MAX_COPY_ORDER));
	order = anon_order_lowered(settings, vmf->vma->vm_mm, d.order);
	if (order != d.order)
		this_cpu_inc(counter[LOWERED]);
	this_cpu_inc(counter[REASON + d.reason]);
	this_cpu_inc(counter[WANTED + order]);
	return anon_order_up_to(order);
}

/* What a decision comes to, counted. */
static __always_inline unsigned long anon_order_answer(const struct mmp_profile *profile,
						       const struct vm_fault *vmf,
						       enum mm_policy_site site,
						       struct mmp_decision d)
{
	u64 __percpu *counter = anon_order_counters(profile);

	if (d.order)
		return anon_order_large(profile, vmf, site, d);
	this_cpu_inc(counter[REASON + d.reason]);
	this_cpu_inc(counter[WANTED]);
	return 0;
}

/* Of faults on average one in twelve asks the shadow, and counts for twelve. */
#define SHADOW_WEIGHT	12
static DEFINE_PER_CPU(struct mmp_draw, shadow_draw);

/* Asks the shadow, and counts what would have become of its answer. */
static noinline void anon_order_ask_shadow(const struct vm_fault *vmf, enum mm_policy_site site)
{
	struct mmp_profile *profile = mmp_profile_of(vmf->vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	u64 __percpu *counter = anon_order_counters(profile);
	const struct mmp_policy *shadow = settings->shadow[MM_POLICY_ANON_ORDER];
	unsigned int order = 0;
	enum mmp_fate fate;
	struct mmp_decision d;
	const u32 *knob;

	shadow = anon_order_of(shadow, settings, vmf->vma);
	if (!shadow || anon_order_refused(vmf->vma))
		return;
	knob = &settings->values[shadow->slot];
	d = mmp_populated(shadow, vmf->vma, knob, shadow->anon_order(vmf, site, knob));
	if (d.order)
		order = anon_order_lowered(settings, vmf->vma->vm_mm, d.order);
	fate = mmp_fate_of(vmf, site, &order);
	if (fate == MMP_UNCOUNTED)
		return;
	this_cpu_add(counter[SHADOW_REASON + d.reason], SHADOW_WEIGHT);
	this_cpu_add(counter[SHADOW_WANTED + order], SHADOW_WEIGHT);
	if (fate == MMP_MADE)
		this_cpu_add(counter[SHADOW_GOT + order], SHADOW_WEIGHT);
	trace_mmpolicy_anon_shadow(vmf->address, site, order, d.reason);
}

/* Called when somebody begins to listen to the tracepoint, and when nobody does any more. */
int mmp_anon_traced(void)
{
	mmp_look_at(true);
	return 0;
}

void mmp_anon_untraced(void)
{
	mmp_look_at(false);
}

/* For all that few need, so that nobody else has its cost. */
static noinline unsigned long anon_order_special(const struct vm_fault *vmf,
						 enum mm_policy_site site)
{
	const struct mmp_profile *profile = mmp_profile_of(vmf->vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = anon_order_policy(settings, vmf->vma);
	unsigned long answer;
	struct mmp_decision d;
	const u32 *knob;

	if (!policy) {
		anon_order_count(profile, STOCK);
		return MM_POLICY_STOCK;
	}
	if (anon_order_refused(vmf->vma))
		return MM_POLICY_STOCK;
	knob = &settings->values[policy->slot];
	if (static_branch_unlikely(&mmp_measuring))
		d = anon_order_measure(profile, policy, vmf, site, knob);
	else
		d = policy->anon_order(vmf, site, knob);
	if (!mmp_is_copy(site))
		d = mmp_populated(policy, vmf->vma, knob, d);
	answer = anon_order_answer(profile, vmf, site, d);
	trace_mmpolicy_anon_order(vmf->address, site, answer ? __fls(answer) : 0, d.reason);
	return answer;
}

static noinline unsigned long anon_order_shadowed(const struct vm_fault *vmf,
						  enum mm_policy_site site)
{
	mmp_draw_again(&shadow_draw, 2 * SHADOW_WEIGHT - 1);
	anon_order_ask_shadow(vmf, site);
	return anon_order_special(vmf, site);
}

/* Flags that anon_order_special() knows more of; VM_UFFD_MINOR is for files. */
#define SPECIAL	(VM_HUGEPAGE | VM_NOHUGEPAGE | VM_LOCKED | VM_UFFD_MISSING | VM_UFFD_WP)

/* Asks the policy of a profile, in the usual case. @vma is that of the fault. */
static __always_inline unsigned long anon_order_ask(const struct mmp_profile *profile,
						    const struct vm_area_struct *vma,
						    const struct vm_fault *vmf,
						    enum mm_policy_site site)
{
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = settings->active[MM_POLICY_ANON_ORDER];

	if (unlikely(!policy)) {
		anon_order_count(profile, STOCK);
		return MM_POLICY_STOCK;
	}
	if (unlikely((u32)vma->vm_flags & SPECIAL))
		return anon_order_special(vmf, site);
	return anon_order_answer(profile, vmf, site,
				 policy->anon_order(vmf, site, &settings->values[policy->slot]));
}

static noinline unsigned long anon_order_scoped(const struct vm_fault *vmf,
						enum mm_policy_site site)
{
	const struct vm_area_struct *vma = vmf->vma;
	struct mmp_profile *profile;

	if (unlikely(!mmp_profile_kept(vma->vm_mm, &profile)))
		return anon_order_special(vmf, site);
	return anon_order_ask(profile, vma, vmf, site);
}

static __always_inline unsigned long anon_order_untimed(const struct vm_fault *vmf,
							enum mm_policy_site site)
{
	if (static_branch_unlikely(&mmp_watched) && !mmp_is_copy(site)) {
		if (mmp_draw_due(&shadow_draw))
			return anon_order_shadowed(vmf, site);
		if (static_branch_unlikely(&mmp_looked_at))
			return anon_order_special(vmf, site);
	}
	if (static_branch_unlikely(&mmp_scoped))
		return anon_order_scoped(vmf, site);
	return anon_order_ask(&mmp_default, vmf->vma, vmf, site);
}

static noinline unsigned long anon_order_timed(const struct vm_fault *vmf,
					       enum mm_policy_site site)
{
	mmp_fault_begins(vmf, site);
	return anon_order_untimed(vmf, site);
}

/* See &mm_policy_ops.anon_orders. */
unsigned long mmp_anon_orders(const struct vm_fault *vmf,
			      enum mm_policy_site site)
{
	if (mmp_is_reuse(site))
		return mmp_anon_order_reuse(vmf->vma);
	if (mmp_is_singles(site) || mmp_is_read(site))
		return mmp_anon_order_besides(vmf, site);
	if (static_branch_unlikely(&mmp_timing) && mmp_draw_due(&mmp_fault_draw))
		return anon_order_timed(vmf, site);
	return anon_order_untimed(vmf, site);
}

/* A large folio. The kernel's own writes leave no trace. */
static noinline bool anon_order_mapped(const struct vm_fault *vmf, int order)
{
	struct mmp_profile *profile = mmp_profile_of(vmf->vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = anon_order_policy(settings, vmf->vma);

	if (!policy)
		return false;
	anon_order_count(profile, mmp_are_singles(vmf, order) ? SINGLES :
						GOT + min(order, MMP_MAX_ORDER));
	return policy->witness && (vmf->flags & FAULT_FLAG_USER);
}

/* See &mm_policy_ops.anon_mapped. */
bool mmp_anon_mapped(const struct vm_fault *vmf, int order)
{
	if (static_branch_unlikely(&mmp_timing))
		mmp_fault_ends(vmf);
	return order && anon_order_mapped(vmf, order);
}
