// SPDX-License-Identifier: GPL-2.0
/* What profiles need memory for: counters, and what points keep while they have a policy. */
#include <linux/percpu.h>
#include <linux/slab.h>

#include "../sense/fault_time.h"
#include "control.h"

/*
 * Memory that the point needs with @policy. It is allocated before mmp_lock is taken, so that
 * reclaim holds up no other writer.
 */
void *mmp_scratch_make(enum mm_policy_point point, const struct mmp_policy *policy)
{
	size_t size = policy ? mmp_parts->points[point]->scratch_size : 0;

	return size ? kvzalloc(size, GFP_KERNEL | __GFP_NOWARN) : NULL;
}

/* Keeps *@scratch for the point if that has none yet; else it stays the caller's, to be freed. */
void mmp_scratch_use(enum mm_policy_point point, void **scratch)
{
	if (!mmp_parts->points[point]->scratch)
		swap(mmp_parts->points[point]->scratch, *scratch);
}

/* Nothing uses @profile any more, or nothing has yet. */
void mmp_profile_free_memory(struct mmp_profile *profile)
{
	int i;

	for (i = 0; i < MM_POLICY_POINTS; i++)
		kvfree(profile->nodes[i]);
	free_percpu(profile->counters);
}

/* Counters, and what points keep for each node. With -ENOMEM, free it all the same. */
int mmp_profile_make_memory(struct mmp_profile *profile)
{
	size_t nr = mmp_nr_counters + MMP_FAULT_POINTS * MMP_FAULT_COUNTERS;
	bool failed;
	int i;

	profile->counters = __alloc_percpu(nr * sizeof(u64), __alignof__(u64));
	failed = !profile->counters;
	for (i = 0; i < MM_POLICY_POINTS; i++) {
		profile->nodes[i] = kvcalloc(nr_node_ids, mmp_parts->points[i]->node_size,
					     GFP_KERNEL);
		failed |= !profile->nodes[i];
	}
	return failed ? -ENOMEM : 0;
}
