// SPDX-License-Identifier: GPL-2.0
/*
 * thp_gfp: a large folio may cost who asked for it with MADV_HUGEPAGE a compaction, and nobody the
 * memory of others. While the cgroup waits for memory, what is free is taken, and no more.
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
