// SPDX-License-Identifier: GPL-2.0
/*
 * thp_gfp/relaxed: any node, with compaction and reclaim, whatever "defrag" says. Only areas
 * with MADV_HUGEPAGE try more than once.
 *
 * "Option 2" of the discussion that only_compact.c names, 2018.
 */
#include <linux/gfp.h>

#include "../mmpolicy.h"

static gfp_t thp_gfp_relaxed(const struct vm_area_struct *vma, gfp_t stock, const u32 *knob)
{
	return __GFP_DIRECT_RECLAIM |
	       (vma->vm_flags & VM_HUGEPAGE ? 0 : __GFP_NORETRY);
}

struct mmp_policy mmp_policy_thp_gfp_relaxed = {
	.name = "relaxed",
	.point = MM_POLICY_THP_GFP,
	.thp_gfp = thp_gfp_relaxed,
};
