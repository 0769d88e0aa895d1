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

#include "../mmpolicy.h"
#include "../anon_order.h"

#define SHORT_RUN	3	/* random access makes runs of 2^n by chance */

enum { MAX_ORDER, RISE_ORDER, FALL_ORDER, PROBE_BLOCKS };

static struct mmp_knob knobs[] = {
	[MAX_ORDER] = MMP_KNOB(max_order, 0, MMP_MAX_ORDER, 4),
	/* A run of 2^n pages allows order n plus this. 0: memory at most x2. */
	[RISE_ORDER] = MMP_KNOB(rise_order, 0, MMP_MIN_ORDER, 0),
	/* What the cap loses where the last folio was not used to its end. */
	[FALL_ORDER] = MMP_KNOB(fall_order, 0, MMP_MAX_ORDER, MMP_MAX_ORDER),
	/* Every n-th PMD-sized block is made of smaller folios. 0: none. */
	[PROBE_BLOCKS] = MMP_KNOB(probe_blocks, 0, 1024, 16),
};

/*
 * Is there a run of 2^@order pages? The caller has seen the first one. Of a
 * short run all pages must be there, of a long one the last tells enough.
 */
static bool is_run(const struct mmp_place *place, long dir, unsigned int order)
{
	long n = 1L << order, least = order > SHORT_RUN ? n : 2;

	for (; n >= least; n--)
		if (mmp_look(place, dir * n) == MMP_EMPTY)
			return false;
	return true;
}

/* mlock() populates all of the VMA: it costs nothing to do that in one go. */
static struct mmp_decision small(const struct vm_area_struct *vma,
				 const u32 *knob, enum mmp_reason reason)
{
	if ((vma->vm_flags & (VM_LOCKED | VM_LOCKONFAULT)) == VM_LOCKED)
		return (struct mmp_decision){ knob[MAX_ORDER], MMP_LOCKED };
	return (struct mmp_decision){ 0, reason };
}

/* Is this PMD-sized block one to be made of smaller folios? */
static bool is_probe(unsigned long addr, unsigned int blocks)
{
	return blocks && !((addr >> PMD_SHIFT) % blocks);
}

/* The long way: a fault at the @edge of a folio of up to @order, at most. */
static noinline struct mmp_decision extend(const struct vm_fault *vmf,
					   enum mm_policy_site site,
					   const u32 *knob, unsigned int order,
					   long dir)
{
	const struct mmp_place place = mmp_place(vmf, site);
	struct mmp_decision d = { order, MMP_RUN };

	switch (mmp_look(&place, dir)) {
	case MMP_EMPTY:
		return small(vmf->vma, knob, MMP_ALONE);
	case MMP_MAPPED:
		order = knob[MAX_ORDER] - min(knob[MAX_ORDER], knob[FALL_ORDER]);
		d = (struct mmp_decision){ min(d.order, order), MMP_UNUSED };
		break;
	case MMP_USED:
		break;
	}
	if (d.order == MMP_MAX_ORDER &&
	    is_probe(vmf->address, knob[PROBE_BLOCKS])) {
		d.order--;
		d.reason = MMP_PROBE;
	}
	for (; d.order >= MMP_MIN_ORDER; d.order--)
		if (is_run(&place, dir, d.order - knob[RISE_ORDER]))
			return d;
	return small(vmf->vma, knob, d.reason);
}

/*
 * The short way, for the steady state of a stream, and for faults with nothing
 * beside them: all that matters is in the VMA and in the table of the fault.
 * It says what the long way would say; that is taken wherever there is doubt.
 */
static struct mmp_decision adaptive(const struct vm_fault *vmf,
				    enum mm_policy_site site, const u32 *knob)
{
	/* A folio begins at an even page, or ends after an odd one. */
	const unsigned long addr = vmf->address, odd = addr & PAGE_SIZE;
	const unsigned long edge = addr + odd;
	const long step = 2 * odd - PAGE_SIZE;
	unsigned int order;
	unsigned long far;
	const pte_t *table;
	pte_t pte;

	if (edge & ((PAGE_SIZE << MMP_MIN_ORDER) - 1))
		return small(vmf->vma, knob, MMP_INSIDE);
	order = __ffs(edge | PMD_SIZE) - PAGE_SHIFT;
	order = min(order, knob[MAX_ORDER]);
	if (order - MMP_MIN_ORDER >= MMP_MAX_ORDER - MMP_MIN_ORDER)
		goto long_way;
	far = addr + (step << (order - knob[RISE_ORDER]));
	if ((far ^ addr) & PMD_MASK)
		goto long_way;
	table = mmp_table(pmdp_get_lockless(vmf->pmd));
	if (!table)
		goto long_way;

	pte = ptep_get_lockless((pte_t *)table + pte_index(addr + step));
	if (pte_none(pte))
		return small(vmf->vma, knob, MMP_ALONE);
	if (!pte_present(pte) || !pte_young(pte) || order <= SHORT_RUN ||
	    far < vmf->vma->vm_start || far >= vmf->vma->vm_end)
		goto long_way;
	pte = ptep_get_lockless((pte_t *)table + pte_index(far));
	if (pte_present(pte))
		return (struct mmp_decision){ order, MMP_RUN };
long_way:
	return extend(vmf, site, knob, order, odd ? 1 : -1);
}

struct mmp_policy mmp_anon_order_adaptive = {
	.name = "adaptive",
	.point = MM_POLICY_ANON_ORDER,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.witness = true,
	.anon_order = adaptive,
};
