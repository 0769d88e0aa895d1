// SPDX-License-Identifier: GPL-2.0
/* sysfs files of the point anon_order: its knobs and counters. */
#include "table.h"

/*
 * The counters, the bounds of knobs and the code that walks page tables assume
 * that a PMD maps 2^9 pages.
 */
static_assert(PMD_ORDER == MMP_MAX_ORDER);

struct mmp_knob mmp_anon_order_knobs[] = {
	[MIN_AVAILABLE_PERCENT] =
		MMP_KNOB(min_available_percent, 0, 90, 5, MMP_AVAILABLE,
			 "orders are lowered where less memory is available; 0: never"),
	[OVERRIDE_MADVISE] =
		MMP_KNOB(override_madvise, 0, 1, 0, MMP_SWITCH,
			 "1: the policy decides for MADV_HUGEPAGE areas too"),
	[MAX_COPY_ORDER] =
		MMP_KNOB(max_copy_order, 0, MMP_MAX_ORDER - 1, 4, MMP_ORDER,
			 "largest order copied by a copy-on-write fault; 0 and 1: one page"),
	[MEMORY_ON_READ] =
		MMP_KNOB(memory_on_read, 0, 1, 0, MMP_SWITCH,
			 "1: a read, too, gets a large folio where the policy wants one"),
};

static const char *const counters[] = {
	[STOCK] = "stock",
	[LOWERED] = "lowered",
	[COLLAPSE_REFUSED] = "collapse_refused",
	[REUSE] = "reuse",
	[SINGLES] = "singles",
	[COST_TICKS] = "cost_ticks",
	[COST_SAMPLES] = "cost_samples",
#define PER_ORDER(base, name)						\
	[base] = name "_order_0", name "_order_1", name "_order_2",	\
	name "_order_3", name "_order_4", name "_order_5",		\
	name "_order_6", name "_order_7", name "_order_8", name "_order_9"
	PER_ORDER(REQUESTED, "requested"),
	PER_ORDER(ALLOCATED, "allocated"),
#define PER_REASON(base, name)						\
	[(base) + MMP_CAP] = name "_cap",				\
	[(base) + MMP_DENSE_NEIGHBOUR] = name "_dense_neighbour",	\
	[(base) + MMP_NO_ROOM] = name "_no_room",			\
	[(base) + MMP_NO_NEIGHBOUR] = name "_no_neighbour",		\
	[(base) + MMP_SPARSE_NEIGHBOUR] = name "_sparse_neighbour",	\
	[(base) + MMP_PROBE] = name "_probe",				\
	[(base) + MMP_LOCKED] = name "_locked",				\
	[(base) + MMP_DEFERRED] = name "_deferred"
	PER_REASON(REASON, "reason"),
	PER_ORDER(SHADOW_REQUESTED, "shadow_requested"),
	PER_ORDER(SHADOW_ALLOCATED, "shadow_allocated"),
	PER_REASON(SHADOW_REASON, "shadow_reason"),
};

struct mmp_point mmp_point_anon_order = {
	.name = "anon_order",
	.knobs = mmp_anon_order_knobs,
	.nr_knobs = ARRAY_SIZE(mmp_anon_order_knobs),
	.counters = counters,
	.nr_counters = ARRAY_SIZE(counters),
	.shadows = true,
	.switched = mmp_available_watch,
};

/**
 * mmp_anon_order_scarce - lower an order if little memory is available
 * @vma: the VMA of the fault
 * @order: the order that the policy requests
 * @percent: the knob min_available_percent, not 0
 *
 * Slow path of anon_order_lowered(). Checks again, as the cached answer of
 * mmp_plenty() may be out of date.
 * Context: as for mmp_available(); takes no lock.
 * Return: the order to use.
 */
unsigned int mmp_anon_order_scarce(const struct vm_area_struct *vma, unsigned int order,
				   u32 percent)
{
	unsigned long pages = 1UL << order;
	unsigned int available;

	if (mmp_plenty_look(vma, percent * 10, pages))
		return order;
	available = mmp_available(vma, percent * 10, &pages);
	order = min_t(unsigned int, mmp_lowered(order, available, percent), ilog2(pages | 1));
	mmp_available_take(1UL << order);
	return order;
}
