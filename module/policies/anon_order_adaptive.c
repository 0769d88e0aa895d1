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
static bool is_run(const struct mmp_place *place, long dir, long pages)
{
	return mmp_look(place, dir * pages) != MMP_EMPTY &&
	       mmp_look(place, dir * (pages / 2 ?: 1)) != MMP_EMPTY &&
	       mmp_look(place, dir * (pages - pages / 4)) != MMP_EMPTY;
}

/* The largest order up to @order whose folio has a run of its size beside it */
static unsigned int run_order(const struct mmp_place *place, long dir,
			      unsigned int order, unsigned int rise)
{
	for (; order >= MMP_MIN_ORDER; order--)
		if (is_run(place, dir, order > rise ? 1L << (order - rise) : 1))
			return order;
	return 0;
}

static bool populated_anyway(const struct vm_area_struct *vma)
{
	return (vma->vm_flags & (VM_LOCKED | VM_LOCKONFAULT)) == VM_LOCKED;
}

static struct mmp_decision extend(const struct vm_fault *vmf,
				  enum mm_policy_site site, long dir,
				  unsigned long behind, unsigned int edge,
				  const u32 *knob)
{
	struct mmp_place place = mmp_place(vmf, site);
	struct mmp_decision d = { knob[MAX_ORDER], MMP_RUN };

	switch (mmp_look(&place, dir)) {
	case MMP_EMPTY:
		return (struct mmp_decision){ 0, MMP_ALONE };
	case MMP_MAPPED:
		d.order -= min(d.order, knob[FALL_ORDER]);
		d.reason = MMP_UNUSED;
		break;
	case MMP_USED:
		break;
	}
	d.order = min3(d.order, edge, ilog2(behind) + knob[RISE_ORDER]);
	if (d.order == MMP_MAX_ORDER && knob[PROBE_BLOCKS] &&
	    !((vmf->address >> PMD_SHIFT) % knob[PROBE_BLOCKS])) {
		d.order--;
		d.reason = MMP_PROBE;
	}
	d.order = run_order(&place, dir, d.order, knob[RISE_ORDER]);
	return d;
}

static struct mmp_decision adaptive(const struct vm_fault *vmf,
				    enum mm_policy_site site, const u32 *knob)
{
	unsigned long page = vmf->address >> PAGE_SHIFT, edge, behind;
	const struct vm_area_struct *vma = vmf->vma;
	long dir;

	if (unlikely(populated_anyway(vma)))
		return (struct mmp_decision){ knob[MAX_ORDER], MMP_LOCKED };

	/* A folio begins at an even page, or ends at an odd one. */
	if (page & 1) {
		dir = 1;
		edge = page + 1;
		behind = (vma->vm_end >> PAGE_SHIFT) - edge;
	} else {
		dir = -1;
		edge = page;
		behind = page - (vma->vm_start >> PAGE_SHIFT);
	}
	if (edge & (BIT(MMP_MIN_ORDER) - 1))
		return (struct mmp_decision){ 0, MMP_INSIDE };
	if (!behind)
		return (struct mmp_decision){ 0, MMP_ALONE };
	return extend(vmf, site, dir, behind,
		      __ffs(edge | BIT(MMP_MAX_ORDER)), knob);
}

struct mmp_policy mmp_anon_order_adaptive = {
	.name = "adaptive",
	.point = MM_POLICY_ANON_ORDER,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.witness = true,
	.anon_order = adaptive,
};
