// SPDX-License-Identifier: GPL-2.0
/* The point compact: whether direct compaction is worth it. */
#include "../mmpolicy.h"

struct mmp_point mmp_point_compact = {
	.name = "compact",
};

/* See &mm_policy_ops.compact_skip. */
bool mmp_compact_skip(struct zone *zone, int order, bool deferred)
{
	return deferred;
}

/* See &mm_policy_ops.compact_done. */
void mmp_compact_done(struct zone *zone, int order, bool success,
		      unsigned long migrate_scanned,
		      unsigned long free_scanned)
{
}
