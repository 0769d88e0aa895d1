// SPDX-License-Identifier: GPL-2.0
/*
 * thp_gfp/light: allocates a large folio only from memory that is already free,
 * without direct compaction or reclaim.
 */
#include <linux/gfp.h>

#include "../mmpolicy.h"

static gfp_t thp_gfp_light(const struct vm_area_struct *vma, gfp_t stock, const u32 *knob)
{
	return 0;
}

struct mmp_policy mmp_policy_thp_gfp_light = {
	.name = "light",
	.point = MM_POLICY_THP_GFP,
	.thp_gfp = thp_gfp_light,
};
