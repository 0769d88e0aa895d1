// SPDX-License-Identifier: GPL-2.0
/*
 * Requests 64 kB, but pages in small cgroups, and in cgroups that stall on
 * memory, as mthp_ext does.
 *
 * The root cgroup counts as small, because the kernel does not count its pages.
 */
#include "mmpolicy.bpf.h"

enum { MIN_MB, MAX_PRESSURE };

MMP_ORDER(order)
{
	if (mmp_bpf_cgroup_pages(fault) < (__u64)fault->knob[MIN_MB] << 8 ||
	    mmp_bpf_pressure(fault) > fault->knob[MAX_PRESSURE])
		return MMP_ANSWER(0, MMP_CAP);
	return MMP_ANSWER(4, MMP_CAP);
}

MMP_POLICY(small_cgroups, .order = (void *)order, .max_order = 4, .knobs = {
	[MIN_MB] = { "min_mb", "MB", "a cgroup with less is small", 0, 1 << 20, 32 },
	[MAX_PRESSURE] = { "max_pressure", "percent", "PSI that is still none", 0, 100, 10 },
});
