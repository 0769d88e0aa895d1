// SPDX-License-Identifier: GPL-2.0
/*
 * anon_order/vma_size: requests large folios in large VMAs. "variable-order,
 * large folios for anonymous memory", RFC v2 (Ryan Roberts, 2023), leaves open
 * whether the size of a VMA is a good hint; this policy tests it.
 */
#include "../mmpolicy.h"
#include "anon_order.h"

enum { MAX_ORDER, MIN_FOLIOS };

static struct mmp_knob knobs[] = {
	[MAX_ORDER] = MMP_KNOB(max_order, 0, MMP_MAX_ORDER, 4, MMP_ORDER,
			       "the largest order; 0 and 1: base pages"),
	[MIN_FOLIOS] = MMP_KNOB(min_folios, 1, 4096, 64, "folios",
				"so many folios must fit into the area, which bounds waste"),
};

static unsigned int vma_size_cap(const struct vm_area_struct *vma, const u32 *knob)
{
	unsigned long pages = (vma->vm_end - vma->vm_start) >> PAGE_SHIFT;
	unsigned int order = knob[MAX_ORDER];

	while (order && pages >> order < knob[MIN_FOLIOS])
		order--;
	return order;
}

static struct mmp_decision anon_order_vma_size(const struct vm_fault *vmf,
					       enum mm_policy_site site, const u32 *knob)
{
	return (struct mmp_decision){ MMP_CAP, vma_size_cap(vmf->vma, knob) };
}

struct mmp_policy mmp_policy_anon_order_vma_size = {
	.name = "vma_size",
	.point = MM_POLICY_ANON_ORDER,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.cap = vma_size_cap,
	.anon_order = anon_order_vma_size,
};
