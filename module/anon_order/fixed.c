// SPDX-License-Identifier: GPL-2.0
/*
 * anon_order/fixed: requests the largest folio up to max_order that fits, like
 * the kernel's mTHP sizes.
 */
#include "../mmpolicy.h"
#include "anon_order.h"

enum { MAX_ORDER };

static struct mmp_knob knobs[] = {
	[MAX_ORDER] = MMP_KNOB(max_order, 0, MMP_MAX_ORDER, 4, MMP_ORDER,
			       "the order of every fault; 0 and 1: base pages"),
};

static struct mmp_decision anon_order_fixed(const struct vm_fault *vmf,
					    enum mm_policy_site site, const u32 *knob)
{
	return (struct mmp_decision){
		.order = knob[MAX_ORDER],
		.reason = MMP_CAP,
	};
}

struct mmp_policy mmp_policy_anon_order_fixed = {
	.name = "fixed",
	.point = MM_POLICY_ANON_ORDER,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.anon_order = anon_order_fixed,
};
