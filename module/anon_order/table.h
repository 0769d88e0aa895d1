/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Knobs and counters of the point anon_order, with helpers to read and raise
 * them.
 */
#ifndef MMPOLICY_ANON_ORDER_TABLE_H
#define MMPOLICY_ANON_ORDER_TABLE_H

#include <linux/log2.h>
#include <linux/userfaultfd_k.h>

#include "../sense/available.h"
#include "../sense/whose.h"
#include "anon_order.h"

enum { MIN_AVAILABLE_PERCENT, OVERRIDE_MADVISE, MAX_COPY_ORDER, MEMORY_ON_READ };

extern struct mmp_knob mmp_anon_order_knobs[];

enum {
	STOCK = MMP_STOCK,
	LOWERED,
	COLLAPSE_REFUSED,
	REUSE,
	SINGLES,
	COST_TICKS,
	COST_SAMPLES,
	REQUESTED,
	ALLOCATED = REQUESTED + MMP_MAX_ORDER + 1,
	REASON = ALLOCATED + MMP_MAX_ORDER + 1,
	SHADOW_REQUESTED = REASON + MMP_REASONS,
	SHADOW_ALLOCATED = SHADOW_REQUESTED + MMP_MAX_ORDER + 1,
	SHADOW_REASON = SHADOW_ALLOCATED + MMP_MAX_ORDER + 1,
};

/*
 * Returns the counters of the point. anon_order is point 0, so they begin at
 * profile->counters without an offset.
 */
static inline u64 __percpu *anon_order_counters(const struct mmp_profile *profile)
{
	static_assert(!MM_POLICY_ANON_ORDER);
	return profile->counters;
}

static inline void anon_order_count(const struct mmp_profile *profile, unsigned int counter)
{
	mmp_count(profile, &mmp_point_anon_order, counter, 1);
}

static inline u32 anon_order_knob(const struct mmp_settings *settings, unsigned int knob)
{
	return settings->values[mmp_anon_order_knobs[knob].slot];
}

/*
 * Returns @policy, or NULL (stock) for a VMA with MADV_HUGEPAGE unless the knob
 * override_madvise is set.
 */
static inline const struct mmp_policy *anon_order_of(const struct mmp_policy *policy,
						     const struct mmp_settings *settings,
						     const struct vm_area_struct *vma)
{
	if ((vma->vm_flags & VM_HUGEPAGE) && !anon_order_knob(settings, OVERRIDE_MADVISE))
		return NULL;
	return policy;
}

static inline const struct mmp_policy *anon_order_policy(const struct mmp_settings *settings,
							 const struct vm_area_struct *vma)
{
	return anon_order_of(settings->active[MM_POLICY_ANON_ORDER], settings, vma);
}

unsigned int mmp_anon_order_scarce(const struct vm_area_struct *vma, unsigned int order,
				   u32 percent);

/*
 * Returns @order, lowered if less memory than min_available_percent is
 * available to @vma.
 */
static inline unsigned int anon_order_lowered(const struct mmp_settings *settings,
					      const struct vm_area_struct *vma,
					      unsigned int order)
{
	const u32 percent = anon_order_knob(settings, MIN_AVAILABLE_PERCENT);

	if (!percent || mmp_plenty(vma, percent * 10, 1UL << order))
		return order;
	return mmp_anon_order_scarce(vma, order, percent);
}

/*
 * Returns the mask of all orders from MMP_MIN_ORDER to @order; 0 for order 0.
 */
static inline unsigned long anon_order_up_to(unsigned int order)
{
	return order ? (2UL << order) - BIT(MMP_MIN_ORDER) : 0;
}

/*
 * Returns true if the kernel allows no large folio in this VMA, so no policy is
 * asked.
 */
static inline bool anon_order_refused(struct vm_area_struct *vma)
{
	return userfaultfd_armed(vma) || mmp_thp_disabled(vma);
}

#endif /* MMPOLICY_ANON_ORDER_TABLE_H */
