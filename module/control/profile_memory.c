// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of profiles: per-CPU counters, state per node, and scratch memory of
 * points that have a policy.
 */
#include <linux/percpu.h>
#include <linux/slab.h>

#include "../sense/fault_time.h"
#include "control.h"

/*
 * Allocates the scratch memory that a point needs with @policy. Returns NULL if it needs none or
 * memory is short. Called before mmp_lock is taken, so that other writers do not wait for reclaim.
 */
void *mmp_scratch_make(enum mm_policy_point point, const struct mmp_policy *policy)
{
	size_t size = policy ? mmp_parts->points[point]->scratch_size : 0;

	return size ? kvzalloc(size, GFP_KERNEL | __GFP_NOWARN) : NULL;
}

/*
 * Hands the memory *@scratch to the point, and sets the pointer to NULL. If the
 * point has scratch memory already, leaves *@scratch to the caller, who frees it.
 */
void mmp_scratch_use(enum mm_policy_point point, void **scratch)
{
	if (!mmp_parts->points[point]->scratch)
		swap(mmp_parts->points[point]->scratch, *scratch);
}

/* Frees the counters and the state per node of a profile that has no users. */
void mmp_profile_free_memory(struct mmp_profile *profile)
{
	int i;

	for (i = 0; i < MM_POLICY_POINTS; i++)
		kvfree(profile->nodes[i]);
	free_percpu(profile->counters);
}

/*
 * Allocates the counters and the state per node of a profile. On -ENOMEM, the
 * caller calls mmp_profile_free_memory().
 */
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
