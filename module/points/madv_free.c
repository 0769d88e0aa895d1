// SPDX-License-Identifier: GPL-2.0
/* The point madv_free: MADV_FREE lazily or at once. */
#include "../mmpolicy.h"

struct mmp_point mmp_point_madv_free = {
	.name = "madv_free",
};

/* See &mm_policy_ops.madv_free_eager. */
bool mmp_madv_free_eager(struct vm_area_struct *vma, unsigned long start,
			 unsigned long end)
{
	return false;
}
