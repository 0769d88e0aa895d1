// SPDX-License-Identifier: GPL-2.0
/*
 * The point thp_gfp: decides how much direct compaction and reclaim a large
 * anonymous folio is worth.
 */
#include <linux/cpuset.h>
#include <linux/gfp.h>
#include <linux/mempolicy.h>
#include <linux/sched.h>
#include <linux/topology.h>

#include "../sense/fault_time.h"
#include "../sense/whose.h"
#include "../trace.h"
#include "effort.h"

#define MIN_ORDER	2	/* mm allocates no large anonymous folio below this order */
#define MAX_ORDER	9	/* PMD size */
#define ORDERS		(MAX_ORDER - MIN_ORDER + 1)

enum {
	STOCK,
	ATTEMPTS,
	LOCAL,
	REMOTE = LOCAL + ORDERS,
	FAILED = REMOTE + ORDERS,
	EFFORT = FAILED + ORDERS,
	STALL = EFFORT + MMP_EFFORTS,
};

static const char *const counters[] = {
	[STOCK] = "stock",
	[ATTEMPTS] = "attempts",
#define PER_ORDER(base, name)						\
	[base] = name "_order_2", name "_order_3", name "_order_4",	\
	name "_order_5", name "_order_6", name "_order_7",		\
	name "_order_8", name "_order_9"
	PER_ORDER(LOCAL, "local"),
	PER_ORDER(REMOTE, "remote"),
	PER_ORDER(FAILED, "failed"),
	MMP_EFFORT_COUNTERS(EFFORT),
	MMP_STALL_COUNTERS(STALL),
};

static void thp_gfp_switched(bool on);

struct mmp_point mmp_point_thp_gfp = {
	.name = "thp_gfp",
	.counters = counters,
	.nr_counters = ARRAY_SIZE(counters),
	.switched = thp_gfp_switched,
};

static void thp_gfp_count(const struct mmp_profile *profile, unsigned int counter, u64 n)
{
	mmp_count(profile, &mmp_point_thp_gfp, counter, n);
}

static void thp_gfp_switched(bool on)
{
	mmp_effort_watch(on ? &mmp_point_thp_gfp : NULL, EFFORT);
}

/*
 * Returns true if the fault prefers one node and the task may allocate there.
 */
static bool thp_gfp_node_is_preferred(const struct vm_area_struct *vma)
{
	int nid = mmp_preferred_node(vma);

	return nid != NUMA_NO_NODE &&
	       node_isset(nid, cpuset_current_mems_allowed);
}

/* Implements &mm_policy_ops.thp_gfp. */
gfp_t mmp_thp_gfp(struct vm_area_struct *vma, gfp_t gfp)
{
	struct mmp_profile *profile = mmp_profile_of(vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = settings->active[MM_POLICY_THP_GFP];
	gfp_t answer;

	if (static_branch_unlikely(&mmp_timing))
		mmp_fault_asked(MM_POLICY_THP_GFP);
	/*
	 * Drops a start time that MADV_COLLAPSE has left: its allocation does
	 * not belong to a fault.
	 */
	mmp_effort_ends();
	if (!policy) {
		thp_gfp_count(profile, STOCK, 1);
		return gfp;
	}
	answer = policy->thp_gfp(vma, gfp, &settings->values[policy->slot]);
	if ((answer & __GFP_THISNODE) && !thp_gfp_node_is_preferred(vma))
		answer &= ~__GFP_THISNODE;
	trace_mmpolicy_thp_gfp_try(vma->vm_start, gfp, answer);
	return answer;
}

static unsigned int thp_gfp_outcome_of(int node)
{
	if (node == NUMA_NO_NODE)
		return FAILED;
	return node == numa_mem_id() ? LOCAL : REMOTE;
}

/* Implements &mm_policy_ops.thp_done. */
void mmp_thp_done(struct vm_area_struct *vma, int order, struct folio *folio)
{
	struct mmp_profile *profile = mmp_profile_of(vma->vm_mm);
	int node = folio ? folio_nid(folio) : NUMA_NO_NODE;
	u64 ns = mmp_effort_ends();

	trace_mmpolicy_thp_gfp(vma->vm_start, order, node, node == numa_mem_id(), ns);
	thp_gfp_count(profile, ATTEMPTS, 1);
	order = clamp(order, MIN_ORDER, MAX_ORDER) - MIN_ORDER;
	thp_gfp_count(profile, thp_gfp_outcome_of(node) + order, 1);
	if (ns)
		mmp_count_stall(profile, &mmp_point_thp_gfp, STALL, ns);
}
