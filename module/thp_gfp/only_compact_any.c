// SPDX-License-Identifier: GPL-2.0
/*
 * thp_gfp/only_compact_any: the preferred node first, while it has pages to spare,
 * then any that is allowed. Compact each once, the preferred one maybe twice, as it
 * is among all; reclaim nothing.
 */
#include <linux/gfp.h>

#include "../mmpolicy.h"

static gfp_t thp_gfp_only_compact_any(const struct vm_area_struct *vma, gfp_t stock,
				      const u32 *knob)
{
	return __GFP_DIRECT_RECLAIM | __GFP_NORETRY | __GFP_ONLY_COMPACT;
}

struct mmp_policy mmp_policy_thp_gfp_only_compact_any = {
	.name = "only_compact_any",
	.point = MM_POLICY_THP_GFP,
	.thp_gfp = thp_gfp_only_compact_any,
};
