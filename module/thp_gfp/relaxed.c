// SPDX-License-Identifier: GPL-2.0
/*
 * thp_gfp/relaxed: allocates on any node, with compaction and reclaim, even if
 * sysfs "defrag" forbids it. The allocator tries more than once only in areas
 * with MADV_HUGEPAGE.
 *
 * "Option 2" of Andrea Arcangeli's "mm: thp: fix MADV_HUGEPAGE vs node
 * reclaim", 2018.
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
