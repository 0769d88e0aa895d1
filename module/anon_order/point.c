// SPDX-License-Identifier: GPL-2.0
/*
 * The point anon_order: folio order of anonymous faults.
 *
 * A fault goes straight through mmp_anon_orders(), with all that is inlined there: the profile
 * "default", its policy, and the count of the answer. Whatever few faults need is behind one of
 * three doors. Each is a function of its own, so that other faults do not save registers for
 * it. Static keys open them, in this order:
 *
 *  key             on while                            a fault then
 *  mmp_timing      an experiment runs                  goes through anon_order_timed(),
 *                                                      if it is drawn; one in 16.5
 *  mmp_watched     a profile has a shadow, or          goes through anon_order_slow(),
 *                  mmp_looked_at is on                 if it is drawn; one in 12
 *  mmp_looked_at   "measure" is 1 in debugfs, or       goes through anon_order_slow()
 *                  a tracepoint has a listener
 *  mmp_scoped      a process or a cgroup is bound,     goes through anon_order_ask_bound(),
 *                  or an experiment runs               which finds the profile
 *  mmp_measuring   "measure" is 1 in debugfs           has its ticks counted in
 *                                                      anon_order_slow()
 *
 * anon_order_slow() is also for VMAs with special flags, and for a task whose profile this CPU
 * has not kept.
 */
#include <linux/timex.h>

#include "../sense/draw.h"
#include "../sense/fault_time.h"
#include "../sense/observe.h"
#include "../trace.h"
#include "ahead.h"
#include "anon_order.h"
#include "other_sites.h"
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
	if (unlikely(d.order == MMP_ORDER_STOCK)) {
		this_cpu_inc(counter[STOCK]);
		return MM_POLICY_STOCK;
	}
	if (mmp_is_copy(site))
		d.order = min(d.order, anon_order_knob(settings, MAX_COPY_ORDER));
	order = anon_order_lowered(settings, vmf->vma, d.order);
	if (order != d.order)
		this_cpu_inc(counter[LOWERED]);
	this_cpu_inc(counter[REASON + d.reason]);
	this_cpu_inc(counter[REQUESTED + order]);
	return anon_order_up_to(order);
}

/* Counts a decision, and turns it into the answer to the kernel: a mask of orders. */
static __always_inline unsigned long anon_order_answer(const struct mmp_profile *profile,
						       const struct vm_fault *vmf,
						       enum mm_policy_site site,
						       struct mmp_decision d)
{
	u64 __percpu *counter = anon_order_counters(profile);

	if (d.order)
		return anon_order_large(profile, vmf, site, d);
	this_cpu_inc(counter[REASON + d.reason]);
	this_cpu_inc(counter[REQUESTED]);
	return 0;
}

/* One fault in twelve, drawn at random, asks the shadow, and is counted twelve times. */
#define SHADOW_WEIGHT	12
static DEFINE_PER_CPU(struct mmp_draw, shadow_draw);

/* Asks the shadow about a fault, and counts what would have become of its answer. */
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

	mmp_draw_again(&shadow_draw, 2 * SHADOW_WEIGHT - 1);
	shadow = anon_order_of(shadow, settings, vmf->vma);
	if (!shadow || anon_order_refused(vmf->vma))
		return;
	knob = &settings->values[shadow->slot];
	d = mmp_mlock_override(shadow, vmf->vma, knob, shadow->anon_order(vmf, site, knob));
	if (d.order == MMP_ORDER_STOCK)
		return;
	if (d.order)
		order = anon_order_lowered(settings, vmf->vma, d.order);
	fate = mmp_fate_of(vmf, site, &order);
	if (fate == MMP_UNCOUNTED)
		return;
	this_cpu_add(counter[SHADOW_REASON + d.reason], SHADOW_WEIGHT);
	this_cpu_add(counter[SHADOW_REQUESTED + order], SHADOW_WEIGHT);
	if (fate == MMP_MADE)
		this_cpu_add(counter[SHADOW_ALLOCATED + order], SHADOW_WEIGHT);
	trace_mmpolicy_anon_shadow(vmf->address, site, order, d.reason);
}

/* Called when the tracepoint gets its first listener, and when it loses the last. */
int mmp_anon_traced(void)
{
	mmp_look_at(true);
	return 0;
}

void mmp_anon_untraced(void)
{
	mmp_look_at(false);
}

/* Door: special flags of the VMA, a shadow, the cost of the decision, the tracepoint. */
static noinline unsigned long anon_order_slow(const struct vm_fault *vmf,
					      enum mm_policy_site site, bool shadow)
{
	const struct mmp_profile *profile = mmp_profile_of(vmf->vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = anon_order_policy(settings, vmf->vma);
	unsigned long answer;
	struct mmp_decision d;
	const u32 *knob;

	if (shadow) {
		anon_order_ask_shadow(vmf, site);
		mmp_answer_ahead(0, MMP_CAP);	/* the shadow answers no fault */
	}
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
		d = mmp_mlock_override(policy, vmf->vma, knob, d);
	answer = anon_order_answer(profile, vmf, site, d);
	trace_mmpolicy_anon_order(vmf->address, site, answer ? __fls(answer) : 0, d.reason);
	return answer;
}

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
	if (unlikely((u32)vma->vm_flags & MMP_SPECIAL_FLAGS))
		return anon_order_slow(vmf, site, false);
	return anon_order_answer(profile, vmf, site,
				 policy->anon_order(vmf, site, &settings->values[policy->slot]));
}

/* Door: the task may have a profile of its own. */
static noinline unsigned long anon_order_ask_bound(const struct vm_fault *vmf,
						   enum mm_policy_site site)
{
	const struct vm_area_struct *vma = vmf->vma;
	struct mmp_profile *profile;

	if (unlikely(!mmp_profile_kept(vma->vm_mm, &profile)))
		return anon_order_slow(vmf, site, false);
	return anon_order_ask(profile, vma, vmf, site);
}

static __always_inline unsigned long anon_order_decide(const struct vm_fault *vmf,
						       enum mm_policy_site site)
{
	if (static_branch_unlikely(&mmp_watched) && !mmp_is_copy(site)) {
		const bool due = mmp_draw_due(&shadow_draw);

		if (due || static_branch_unlikely(&mmp_looked_at))
			return anon_order_slow(vmf, site, due);
	}
	if (static_branch_unlikely(&mmp_scoped))
		return anon_order_ask_bound(vmf, site);
	return anon_order_ask(&mmp_default, vmf->vma, vmf, site);
}

/* Door: the fault was drawn to be timed. */
static noinline unsigned long anon_order_timed(const struct vm_fault *vmf,
					       enum mm_policy_site site)
{
	mmp_fault_begins(vmf, site);
	return anon_order_decide(vmf, site);
}

/* See &mm_policy_ops.anon_orders. */
unsigned long mmp_anon_orders(const struct vm_fault *vmf,
			      enum mm_policy_site site)
{
	if (mmp_is_reuse(site))
		return mmp_anon_order_reuse(vmf->vma);
	if (mmp_is_singles(site) || mmp_is_read(site))
		return mmp_anon_order_other_site(vmf, site);
	if (static_branch_unlikely(&mmp_timing) && mmp_draw_due(&mmp_fault_draw))
		return anon_order_timed(vmf, site);
	return anon_order_decide(vmf, site);
}

/*
 * A large folio was mapped: counts it. Are its outermost pages to be old? Not after a write of
 * the kernel itself, which sets no accessed bit.
 */
static noinline bool anon_order_mapped(const struct vm_fault *vmf, int order)
{
	struct mmp_profile *profile = mmp_profile_of(vmf->vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = anon_order_policy(settings, vmf->vma);

	if (!policy)
		return false;
	anon_order_count(profile, mmp_are_singles(vmf, order) ? SINGLES :
						ALLOCATED + min(order, MMP_MAX_ORDER));
	return policy->witness && (vmf->flags & FAULT_FLAG_USER);
}

/* See &mm_policy_ops.anon_mapped. */
bool mmp_anon_mapped(const struct vm_fault *vmf, int order)
{
	if (static_branch_unlikely(&mmp_timing))
		mmp_fault_ends(vmf);
	return order && anon_order_mapped(vmf, order);
}
