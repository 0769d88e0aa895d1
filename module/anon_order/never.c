// SPDX-License-Identifier: GPL-2.0
/*
 * anon_order/never: requests order 0 for every fault, even if sysfs enables
 * larger sizes.
 */
#include "../mmpolicy.h"
#include "ahead.h"

static struct mmp_decision anon_order_never(const struct vm_fault *vmf,
					    enum mm_policy_site site, const u32 *knob)
{
	mmp_answer_ahead(MMP_AHEAD_MOST, MMP_CAP);
	return (struct mmp_decision){ .order = 0, .reason = MMP_CAP };
}

struct mmp_policy mmp_policy_anon_order_never = {
	.name = "never",
	.point = MM_POLICY_ANON_ORDER,
	.anon_order = anon_order_never,
};
