// SPDX-License-Identifier: GPL-2.0
/*
 * anon_order/adaptive: a folio as large as the run of used pages that the
 * fault extends, forward or backward.
 *
 * The page table is the memory of this policy. A folio may begin where the
 * fault is at its edge and the pages on the other side of that edge are there,
 * as many as the folio has: each page that is allocated ahead of its use has
 * one behind it, so at most twice the memory is used that order 0 would use.
 * Runs grow by doubling. There is no state to be copied by fork, mremap, split
 * or merge, and several streams in one VMA do not disturb each other.
 *
 * Large folios hide whether their pages are used. So a folio's outermost pages
 * are mapped as not accessed (see &mm_policy_ops.anon_mapped); a stream that
 * went through a folio has touched the one next to the fault. PMD mappings
 * have one accessed bit for all, so now and then such a block is made of
 * smaller folios, which tell.
 *
 * The idea, to raise a VMA's order when faults extend a contiguous range and
 * to lower it when they do not, is an open question of "variable-order, large
 * folios for anonymous memory", RFC v2 (Ryan Roberts, 2023).
 */
#include <linux/bitops.h>
#include <linux/log2.h>

#include "../mmpolicy.h"
#include "../anon_order.h"

enum { MAX_ORDER, RISE_ORDER, FALL_ORDER, PROBE_BLOCKS };

static struct mmp_knob knobs[] = {
	[MAX_ORDER] = MMP_KNOB(max_order, 0, MMP_MAX_ORDER, 4),
	/* A run of 2^n pages allows order n plus this. 0: memory at most x2. */
	[RISE_ORDER] = MMP_KNOB(rise_order, 0, 4, 0),
	/* What the cap loses where the last folio was not used to its end. */
	[FALL_ORDER] = MMP_KNOB(fall_order, 0, MMP_MAX_ORDER, MMP_MAX_ORDER),
	/* Every n-th PMD-sized block is made of smaller folios. 0: none. */
	[PROBE_BLOCKS] = MMP_KNOB(probe_blocks, 0, 1024, 16),
};

/* Are there @pages pages in a row? Looks at some, the whole run is likely. */
static bool is_run(const struct mmp_fault *fault, long dir, long pages)
{
	return mmp_look(fault, dir * pages) != MMP_EMPTY &&
	       mmp_look(fault, dir * (pages / 2 ?: 1)) != MMP_EMPTY &&
	       mmp_look(fault, dir * (pages - pages / 4)) != MMP_EMPTY;
}

/* The largest order up to @order whose folio has a run of its size beside it */
static unsigned int run_order(const struct mmp_fault *fault, long dir,
			      unsigned int order, unsigned int rise)
{
	for (; order >= MMP_MIN_ORDER; order--)
		if (is_run(fault, dir, order > rise ? 1L << (order - rise) : 1))
			return order;
	return 0;
}

static struct mmp_decision adaptive(const struct mmp_fault *fault,
				    const u32 *knob)
{
	unsigned long page = fault->addr >> PAGE_SHIFT;
	unsigned int order = knob[MAX_ORDER];
	struct mmp_decision d = { .reason = MMP_RUN };
	unsigned long edge = page, behind;
	enum mmp_page last;
	long dir = -1;

	if (unlikely(fault->locked))
		return (struct mmp_decision){ order, MMP_LOCKED };

	/* A folio begins at an even page, or ends at an odd one. */
	behind = (fault->addr - fault->start) >> PAGE_SHIFT;
	if (page & 1) {
		edge = page + 1;
		behind = ((fault->end - fault->addr) >> PAGE_SHIFT) - 1;
		dir = 1;
	}
	if (edge & ((1 << MMP_MIN_ORDER) - 1))
		return (struct mmp_decision){ 0, MMP_INSIDE };
	last = behind ? mmp_look(fault, dir) : MMP_EMPTY;
	if (last == MMP_EMPTY)
		return (struct mmp_decision){ 0, MMP_ALONE };

	if (last == MMP_MAPPED) {
		order -= min(order, knob[FALL_ORDER]);
		d.reason = MMP_UNUSED;
	}
	order = min3(order, (unsigned int)__ffs(edge | BIT(MMP_MAX_ORDER)),
		     ilog2(behind) + knob[RISE_ORDER]);
	if (order == MMP_MAX_ORDER && knob[PROBE_BLOCKS] &&
	    !((page >> MMP_MAX_ORDER) % knob[PROBE_BLOCKS])) {
		order--;
		d.reason = MMP_PROBE;
	}
	d.order = run_order(fault, dir, order, knob[RISE_ORDER]);
	return d;
}

struct mmp_policy mmp_anon_order_adaptive = {
	.name = "adaptive",
	.point = MM_POLICY_ANON_ORDER,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.witness = true,
	.anon_order = adaptive,
};
