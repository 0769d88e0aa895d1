// SPDX-License-Identifier: GPL-2.0
/*
 * thp_gfp/only_compact: compacts the preferred node once, reclaims nothing, and
 * tries no other node. The preferred node is the one that the application's
 * memory policy prefers (MPOL_PREFERRED), else the node of the CPU.
 *
 * "Option 1" of Andrea Arcangeli's "mm: thp: fix MADV_HUGEPAGE vs node
 * reclaim", 2018.
 */
#include <linux/gfp.h>

#include "../mmpolicy.h"

static gfp_t thp_gfp_only_compact(const struct vm_area_struct *vma, gfp_t stock, const u32 *knob)
{
	return __GFP_DIRECT_RECLAIM | __GFP_NORETRY | __GFP_ONLY_COMPACT |
	       __GFP_THISNODE;
}

struct mmp_policy mmp_policy_thp_gfp_only_compact = {
	.name = "only_compact",
	.point = MM_POLICY_THP_GFP,
	.thp_gfp = thp_gfp_only_compact,
};
