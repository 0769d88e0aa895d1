/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The rule by which the policy adaptive chooses a folio order, and helpers that
 * build its answers.
 */
#ifndef MMPOLICY_JUDGE_H
#define MMPOLICY_JUDGE_H

#include "anon_order.h"
#include "defer.h"
#include "entries.h"
#include "waste.h"

/* Knobs of adaptive, as indexes into its array of values. */
enum { MAX_ORDER, MIN_USED_PAGES, PROBE_BLOCKS, MIN_FOLIOS };

/*
 * The eight places near a fault that adaptive examines: distances from the
 * fault's block in blocks of 64 kB, and from its group in groups of 16 kB. The
 * most telling place comes first.
 */
#define PLACES	4
static const s8 block_places[PLACES] __maybe_unused = { -1, 1, -4, 4 };
static const s8 group_places[PLACES] __maybe_unused = { -1, 1, -4, -2 };

static __always_inline struct mmp_decision anon_order_small(enum mmp_reason reason)
{
	return (struct mmp_decision){ reason, 0 };
}

/*
 * Answers order 0 after examining memory near the fault, and counts the fault
 * towards deferring (defer.h).
 */
static __always_inline struct mmp_decision anon_order_none(const struct vm_fault *vmf,
							   enum mmp_reason reason)
{
	mmp_defer_sooner(vmf->vma->vm_mm, reason == MMP_NO_ROOM);
	return anon_order_small(reason);
}

/*
 * Answers with the large order @order. This resets deferring (defer.h), and
 * adds credit if the order is 64 kB or more (waste.h).
 */
static __always_inline struct mmp_decision anon_order_run(const struct vm_fault *vmf, u32 order)
{
	mmp_defer_later(order);
	mmp_credit_earn(vmf->vma->vm_mm, order);
	return (struct mmp_decision){ MMP_DENSE_NEIGHBOUR, order };
}

bool anon_order_fits(const struct mmp_place *place);
struct mmp_decision anon_order_grown(const struct vm_fault *vmf, const struct mmp_place *place,
				     const u32 *knob);
struct mmp_decision anon_order_huge(const struct vm_fault *vmf, const u32 *knob);
struct mmp_decision anon_order_judge(const struct vm_fault *vmf, const u32 *knob);

#endif /* MMPOLICY_JUDGE_H */
