// SPDX-License-Identifier: GPL-2.0
/*
 * anon_order/adaptive: a folio as large as the run of used pages that the
 * fault extends, forward or backward.
 *
 * The page table is the memory of this policy. A folio may begin where the
 * fault is at its edge and the pages on the other side of that edge are there,
 * as many as the folio has: each page that is allocated ahead of its use has
 * one behind it, so a run that ends wastes about what it has used, at most.
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

#include "../mmpolicy.h"
#include "anon_order.h"

#define SHORT_RUN	3	/* random access makes runs of 2^n by chance */

enum { MAX_ORDER, RISE_ORDER, FALL_ORDER, PROBE_BLOCKS };

static struct mmp_knob knobs[] = {
	[MAX_ORDER] = MMP_KNOB(max_order, MMP_MIN_ORDER, MMP_MAX_ORDER, 4),
	/* A run of 2^n pages allows order n plus this. */
	[RISE_ORDER] = MMP_KNOB(rise_order, 0, MMP_MIN_ORDER, 0),
	/* What the cap loses where the last folio was not used to its end. */
	[FALL_ORDER] = MMP_KNOB(fall_order, 0, MMP_MAX_ORDER, MMP_MAX_ORDER),
	/* Every n-th PMD-sized block is made of smaller folios. 0: none. */
	[PROBE_BLOCKS] = MMP_KNOB(probe_blocks, 0, 1024, 16),
};

/*
 * Where to look inside a run, besides its ends: at a third, which no regular
 * distance between small records hits. Works in pages and in bytes.
 */
static __always_inline long third(long distance)
{
	return distance * 341 >> 10;
}

/*
 * Is there a run of 2^@order pages? The caller has seen the first one. Of a
 * short run all pages must be there, of a long one two tell enough.
 */
static bool anon_order_is_run(const struct mmp_place *place, long dir, unsigned int order)
{
	long n = 1L << order;

	if (order > SHORT_RUN)
		return mmp_look(place, third(dir * n)) != MMP_EMPTY &&
		       mmp_look(place, dir * n) != MMP_EMPTY;
	for (; n > 1; n--)
		if (mmp_look(place, dir * n) == MMP_EMPTY)
			return false;
	return true;
}

/* mlock() populates all of the VMA: it costs nothing to do that in one go. */
static struct mmp_decision anon_order_small(const struct vm_area_struct *vma,
					    const u32 *knob, enum mmp_reason reason)
{
	if ((vma->vm_flags & (VM_LOCKED | VM_LOCKONFAULT)) == VM_LOCKED)
		return (struct mmp_decision){ knob[MAX_ORDER], MMP_LOCKED };
	return (struct mmp_decision){ 0, reason };
}

/* Is this PMD-sized block one to be made of smaller folios? */
static bool anon_order_is_probe(unsigned long addr, unsigned int blocks)
{
	return blocks && !((addr >> PMD_SHIFT) % blocks);
}

/* A folio begins at an even page, or ends after an odd one: bytes to the run. */
static __always_inline long beside(unsigned long addr)
{
	return 2 * (long)(addr & PAGE_SIZE) - (long)PAGE_SIZE;
}

/* The order of the largest block that begins, or ends, with this page. */
static __always_inline unsigned int edge_order(unsigned long addr)
{
	return __ffs(addr + (addr & PAGE_SIZE)) - PAGE_SHIFT;
}

/* The long way, for a fault that is at the edge of a folio. */
static noinline struct mmp_decision anon_order_extend(const struct vm_fault *vmf,
						      enum mm_policy_site site,
						      const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf, site);
	const long dir = beside(vmf->address) >> PAGE_SHIFT;
	struct mmp_decision d = { knob[MAX_ORDER], MMP_RUN };

	if (site == MM_POLICY_PMD && d.order < MMP_MAX_ORDER)
		return (struct mmp_decision){ 0, MMP_CAP };
	switch (mmp_look(&place, dir)) {
	case MMP_EMPTY:
		return anon_order_small(vmf->vma, knob, MMP_ALONE);
	case MMP_MAPPED:
		d.order -= min(d.order, knob[FALL_ORDER]);
		d.reason = MMP_UNUSED;
		break;
	case MMP_USED:
		break;
	}
	d.order = min(d.order, edge_order(vmf->address));
	if (d.order == MMP_MAX_ORDER &&
	    anon_order_is_probe(vmf->address, knob[PROBE_BLOCKS])) {
		d.order--;
		d.reason = MMP_PROBE;
	}
	for (; d.order >= MMP_MIN_ORDER; d.order--)
		if (anon_order_is_run(&place, dir, d.order - knob[RISE_ORDER]))
			return d;
	return anon_order_small(vmf->vma, knob, d.reason);
}

/*
 * The short way, for faults with nothing beside them, and for the steady state
 * of a stream: all that matters is in the table of the fault. It says what the
 * long way would say; that is taken wherever there is doubt. An empty entry of
 * another VMA is as good as one of this VMA.
 */
static struct mmp_decision anon_order_adaptive(const struct vm_fault *vmf,
					       enum mm_policy_site site, const u32 *knob)
{
	const struct vm_area_struct *vma = vmf->vma;
	const unsigned long addr = vmf->address;
	unsigned int order = edge_order(addr), run;
	const pte_t *here;
	pmd_t pmd;
	pte_t pte;
	long far;

	if (order < MMP_MIN_ORDER)
		return anon_order_small(vma, knob, MMP_INSIDE);
	if (order >= MMP_MAX_ORDER)		/* the entry is in another table */
		goto long_way;
	pmd = pmdp_get_lockless(vmf->pmd);
	if (!mmp_is_table(pmd))
		goto long_way;
	here = mmp_table(pmd) + pte_index(addr);
	pte = mmp_pte(here, beside(addr));
	if (pte_none(pte))
		return anon_order_small(vma, knob, MMP_ALONE);

	order = min(order, knob[MAX_ORDER]);
	run = order - knob[RISE_ORDER];
	far = beside(addr) << run;
	if (run > SHORT_RUN && pte_present(pte) && pte_young(pte) &&
	    !(((addr + far) ^ addr) & PMD_MASK) &&
	    addr + far >= vma->vm_start && addr + far < vma->vm_end &&
	    pte_present(mmp_pte(here, third(far))) &&
	    pte_present(mmp_pte(here, far)))
		return (struct mmp_decision){ order, MMP_RUN };
long_way:
	return anon_order_extend(vmf, site, knob);
}

struct mmp_policy mmp_policy_anon_order_adaptive = {
	.name = "adaptive",
	.point = MM_POLICY_ANON_ORDER,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.witness = true,
	.anon_order = anon_order_adaptive,
};
