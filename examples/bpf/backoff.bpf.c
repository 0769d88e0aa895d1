// SPDX-License-Identifier: GPL-2.0
/*
 * compact: after a failed attempt, the zone is not compacted for a time that
 * grows with the pages that the attempt has scanned (us_per_page). A success
 * ends the pause.
 */
#include "mmpolicy.bpf.h"

enum { US_PER_PAGE };

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} tried_again SEC(".maps");

MMP_COMPACT(backoff)
{
	const __u64 wait = 1000ULL * compaction->knob[US_PER_PAGE] * compaction->scanned;
	__u32 key = compaction->zone << 8 | compaction->order << 1 | compaction->movable;
	__u64 now = bpf_ktime_get_ns(), *when;

	if (compaction->when == MMP_BEFORE) {
		when = bpf_map_lookup_elem(&tried_again, &key);
		return when && now < *when ? MMP_DEFER : MMP_STOCK;
	}
	if (compaction->when == MMP_FAILED)
		now += wait;
	bpf_map_update_elem(&tried_again, &key, &now, 0);
	return MMP_STOCK;
}

MMP_POLICY_OF(compact, policy, .name = "backoff", .compact = (void *)backoff, .knobs = {
	[US_PER_PAGE] = { "us_per_page", "us", "time that pays for a page", 0, 10000, 50 },
});
