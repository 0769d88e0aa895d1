// SPDX-License-Identifier: GPL-2.0
/*
 * madv_free/cap: MADV_FREE frees lazily while the lazily freed pages of the
 * process, or of its cgroup, stay below a limit and memory is not short.
 * Otherwise it frees at once.
 */
#include "../mmpolicy.h"
#include "../sense/available.h"
#include "lazyfree.h"

enum { LIMIT_MB, PER_CGROUP, MIN_AVAILABLE_PERCENT };

static struct mmp_knob knobs[] = {
	[LIMIT_MB] = MMP_KNOB(limit_mb, 0, 1 << 20, 256, "MiB",
			      "the most memory that may be lazily freed; 0: none"),
	[PER_CGROUP] =
		MMP_KNOB(per_cgroup, 0, 1, 0, MMP_SWITCH,
			 "1: limit_mb is for all processes of a cgroup together"),
	[MIN_AVAILABLE_PERCENT] =
		MMP_KNOB(min_available_percent, 0, 90, 5, MMP_AVAILABLE,
			 "all is freed at once where less memory is available; 0: never"),
};

static enum mmp_lazy_answer madv_free_cap(struct vm_area_struct *vma, unsigned long start,
					  unsigned long end, const u32 *knob)
{
	const struct mmp_lazy_limit limit = {
		.pages = (unsigned long)knob[LIMIT_MB] << (20 - PAGE_SHIFT),
		.shared = knob[PER_CGROUP],
	};
	unsigned int enough = knob[MIN_AVAILABLE_PERCENT] * 10;
	unsigned long pages = 0;

	if (mmp_available(vma, enough, &pages) < enough)
		return MMP_ANSWER_MEMORY;
	return mmp_tracked_ask(vma, start, end, limit);
}

struct mmp_policy mmp_policy_madv_free_cap = {
	.name = "cap",
	.point = MM_POLICY_MADV_FREE,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.madv_free = madv_free_cap,
};
