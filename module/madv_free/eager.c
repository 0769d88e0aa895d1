// SPDX-License-Identifier: GPL-2.0
/* madv_free/eager: MADV_FREE always frees at once, as MADV_DONTNEED does. */
#include "../mmpolicy.h"
#include "lazyfree.h"

static enum mmp_lazy_answer madv_free_eager(struct vm_area_struct *vma, unsigned long start,
					    unsigned long end, const u32 *knob)
{
	return MMP_ANSWER_EAGER;
}

struct mmp_policy mmp_policy_madv_free_eager = {
	.name = "eager",
	.point = MM_POLICY_MADV_FREE,
	.madv_free = madv_free_eager,
};
