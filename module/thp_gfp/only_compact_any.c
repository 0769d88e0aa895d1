// SPDX-License-Identifier: GPL-2.0
/*
 * thp_gfp/only_compact_any: tries the preferred node first, if it has free
 * pages to spare, then all allowed nodes. Compacts each node once; the
 * preferred node may be compacted twice, as the second round includes it.
 * Reclaims nothing.
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
