// SPDX-License-Identifier: GPL-2.0
/*
 * thp_gfp: memory with MADV_HUGEPAGE may be compacted for a large folio, but no
 * other memory is reclaimed for it. All other memory, and a cgroup that stalls
 * on memory, gets a large folio only from free memory.
 */
#include "mmpolicy.bpf.h"

enum { MAX_PRESSURE };

MMP_EFFORT(calm)
{
	if (!effort->madvised || mmp_bpf_pressure(effort) > effort->knob[MAX_PRESSURE])
		return MMP_LIGHT;
	return MMP_ONLY_COMPACT_ANY;
}

MMP_POLICY_OF(thp_gfp, policy, .name = "calm", .effort = (void *)calm, .knobs = {
	[MAX_PRESSURE] = { "max_pressure", "percent", "PSI that is still none", 0, 100, 10 },
});
