// SPDX-License-Identifier: GPL-2.0
/*
 * The point anon_order: chooses the folio order of anonymous faults.
 *
 * Most faults take the fast path, which is inlined in mmp_anon_orders(): the
 * profile "default", its policy, and the count of the answer. Rare cases are in
 * three noinline functions, anon_order_timed(), anon_order_slow() and
 * anon_order_ask_bound(), so that the fast path saves no registers for them.
 * Static keys branch to them, in this order:
 *
 *	key		on while				a fault then
 *	mmp_timing	an experiment runs			goes through anon_order_timed(),
 *								if it is sampled; one in 16.5
 *	mmp_watched	a profile has a shadow, or		goes through anon_order_slow(),
 *			mmp_looked_at is on			if it is sampled; one in 12
 *	mmp_looked_at	"measure" is 1 in debugfs, or		goes through anon_order_slow()
 *			a tracepoint has a listener
 *	mmp_scoped	a process or a cgroup is bound,		goes through anon_order_ask_bound(),
 *			or an experiment runs			which finds the profile
 *	mmp_measuring	"measure" is 1 in debugfs		has its ticks counted in
 *								anon_order_slow()
 *
 * anon_order_slow() also handles VMAs with special flags, and tasks whose
 * profile this CPU has not cached. A shadow is a second policy that is only
 * asked and counted.
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

/*
 * Counts a decision and converts it into the kernel's form: a mask of allowed
 * orders.
 */
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

/*
 * One fault in SHADOW_WEIGHT, chosen at random, asks the shadow policy, and is
 * counted SHADOW_WEIGHT times.
 */
#define SHADOW_WEIGHT	12
static DEFINE_PER_CPU(struct mmp_draw, shadow_draw);

/*
 * Asks the shadow policy, whose answer is not used, about a fault, and counts
 * the folio that it would have got.
 */
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

/*
 * Called when the tracepoint mmpolicy_anon_order gets its first listener. While
 * it has listeners, all faults take the slow path, which traces them.
 */
int mmp_anon_traced(void)
{
	mmp_look_at(true);
	return 0;
}

/* Called when the tracepoint mmpolicy_anon_order has lost its last listener. */
void mmp_anon_untraced(void)
{
	mmp_look_at(false);
}

/*
 * Slow path, for VMAs with special flags, to ask the shadow policy (if @shadow),
 * to measure the time of the decision, or to trace it.
 */
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
		/* The shadow's answers in advance must not apply to later faults. */
		mmp_answer_ahead(0, MMP_CAP);
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

/* Fast path: asks the policy of @profile about a fault in @vma. */
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

/*
 * Path while a process or cgroup is bound to a profile: finds the profile of the
 * faulting process first.
 */
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

/* Answers a fault that was sampled for timing: starts its clock, then asks the policy. */
static noinline unsigned long anon_order_timed(const struct vm_fault *vmf,
					       enum mm_policy_site site)
{
	mmp_fault_begins(vmf, site);
	return anon_order_decide(vmf, site);
}

/* Implements &mm_policy_ops.anon_orders. */
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
 * Counts a large folio after it was mapped. Returns true if the kernel must
 * clear the accessed bits of its first and last page. Returns false for a fault
 * of the kernel itself (as in copy_to_user()), because that write sets no
 * accessed bit, and the folio would look unused.
 */
static __always_inline bool anon_order_mapped(const struct vm_fault *vmf, int order)
{
	struct mmp_profile *profile = mmp_profile_of(vmf->vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = anon_order_policy(settings, vmf->vma);

	if (!policy)
		return false;
	this_cpu_inc(anon_order_counters(profile)[mmp_are_singles(vmf, order) ? SINGLES :
						  ALLOCATED + min(order, MMP_MAX_ORDER)]);
	return policy->witness && (vmf->flags & FAULT_FLAG_USER);
}

/*
 * Implements mmp_anon_mapped() while an experiment times faults: stops the clock of this fault
 * first. @order is 0 for a single page, which needs nothing else.
 */
static noinline bool anon_order_mapped_timed(const struct vm_fault *vmf, int order)
{
	mmp_fault_ends(vmf);
	return order && anon_order_mapped(vmf, order);
}

/* Implements &mm_policy_ops.anon_mapped. */
bool mmp_anon_mapped(const struct vm_fault *vmf, int order)
{
	if (static_branch_unlikely(&mmp_timing))
		return anon_order_mapped_timed(vmf, order);
	return order && anon_order_mapped(vmf, order);
}
