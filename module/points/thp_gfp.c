// SPDX-License-Identifier: GPL-2.0
/* The point thp_gfp: effort to allocate large anonymous folios. */
#include "../mmpolicy.h"

struct mmp_point mmp_point_thp_gfp = {
	.name = "thp_gfp",
};

/* See &mm_policy_ops.thp_gfp. */
gfp_t mmp_thp_gfp(struct vm_area_struct *vma, gfp_t gfp)
{
	return gfp;
}
