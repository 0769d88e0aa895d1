// SPDX-License-Identifier: GPL-2.0
/* The point thp_gfp: effort to allocate large anonymous folios. */
#include <linux/cpuset.h>
#include <linux/gfp.h>
#include <linux/mempolicy.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/topology.h>

struct compact_control;			/* for the next line */
#include <trace/events/compaction.h>
#include <trace/events/vmscan.h>

#include "../sense/events.h"
#include "../sense/stall.h"
#include "../sense/whose.h"
#include "../trace.h"

#define MIN_ORDER	2	/* mm has no large anonymous folio below it */
#define MAX_ORDER	9	/* PMD size */
#define ORDERS		(MAX_ORDER - MIN_ORDER + 1)

enum {
	STOCK,
	ATTEMPTS,
	LOCAL,
	REMOTE = LOCAL + ORDERS,
	FAILED = REMOTE + ORDERS,
	RECLAIM = FAILED + ORDERS,	/* for large folios, then for base pages */
	MEMCG_RECLAIM = RECLAIM + 2,
	KSWAPD = MEMCG_RECLAIM + 2,
	MIGRATE_SCANNED = KSWAPD + 2,
	FREE_SCANNED,
	STALL,
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
#define LARGE_AND_BASE(base, name)					\
	[base] = name "_large", name "_base"
	LARGE_AND_BASE(RECLAIM, "reclaim"),
	LARGE_AND_BASE(MEMCG_RECLAIM, "memcg_reclaim"),
	LARGE_AND_BASE(KSWAPD, "kswapd"),
	[MIGRATE_SCANNED] = "migrate_scanned",
	[FREE_SCANNED] = "free_scanned",
	MMP_STALL_COUNTERS(STALL),
};

static void watch_effort(bool on);

struct mmp_point mmp_point_thp_gfp = {
	.name = "thp_gfp",
	.counters = counters,
	.nr_counters = ARRAY_SIZE(counters),
	.switched = watch_effort,
};

static void count(const struct mmp_profile *profile, unsigned int counter, u64 n)
{
	mmp_count(profile, &mmp_point_thp_gfp, counter, n);
}

/* What tasks do. Kernel threads and interrupts are nobody's faults. */
static void count_current(unsigned int counter, u64 n)
{
	if (!in_task() || current->flags & PF_KTHREAD)
		return;
	guard(rcu)();
	count(mmp_profile_of(current->mm), counter, n);
}

/*
 * For what is an effort made? Large folios in faults are asked for without access
 * to reserves and without a warning (GFP_TRANSHUGE_LIGHT), base pages are not.
 */
static bool for_large(gfp_t gfp)
{
	const gfp_t large = __GFP_NOMEMALLOC | __GFP_NOWARN;

	return (gfp & large) == large;
}

static void count_reclaim(unsigned int counter, gfp_t gfp)
{
	count_current(counter + !for_large(gfp), 1);
}

/* An attempt is timed from its first effort on to mmp_thp_done(). khugepaged makes none. */
static struct mmp_stamps stamps;

static void effort_begins(gfp_t gfp)
{
	if (for_large(gfp) && !(current->flags & PF_KTHREAD))
		mmp_stall_begins(&stamps);
}

static void compaction_begins(void *unused, int order, gfp_t gfp, int prio)
{
	effort_begins(gfp);
}

static void direct_reclaim_begins(void *unused, int order, gfp_t gfp)
{
	gfp = order ? gfp : 0;
	count_reclaim(RECLAIM, gfp);
	effort_begins(gfp);
}

/* The order is not told here. */
static void memcg_reclaim_begins(void *unused, int order, gfp_t gfp)
{
	count_reclaim(MEMCG_RECLAIM, gfp);
}

static void kswapd_is_woken(void *unused, int nid, int zid, int order, gfp_t gfp)
{
	count_reclaim(KSWAPD, order ? gfp : 0);
}

/* Compaction by tasks, whatever for. */
static void migrate_scanned(void *unused, unsigned long start_pfn,
			    unsigned long end_pfn, unsigned long nr_scanned,
			    unsigned long nr_taken)
{
	count_current(MIGRATE_SCANNED, nr_scanned);
}

static void free_scanned(void *unused, unsigned long start_pfn,
			 unsigned long end_pfn, unsigned long nr_scanned,
			 unsigned long nr_taken)
{
	count_current(FREE_SCANNED, nr_scanned);
}

static struct mmp_event events[] = {
	{ "mm_compaction_try_to_compact_pages", compaction_begins },
	{ "mm_vmscan_direct_reclaim_begin", direct_reclaim_begins },
	{ "mm_vmscan_memcg_reclaim_begin", memcg_reclaim_begins },
	{ "mm_vmscan_wakeup_kswapd", kswapd_is_woken },
	{ "mm_compaction_isolate_migratepages", migrate_scanned },
	{ "mm_compaction_isolate_freepages", free_scanned },
	{ "mm_compaction_fast_isolate_freepages", free_scanned },
	{}
};

static void watch_effort(bool on)
{
	check_trace_callback_type_mm_compaction_try_to_compact_pages(compaction_begins);
	check_trace_callback_type_mm_vmscan_direct_reclaim_begin(direct_reclaim_begins);
	check_trace_callback_type_mm_vmscan_wakeup_kswapd(kswapd_is_woken);
	check_trace_callback_type_mm_compaction_isolate_migratepages(migrate_scanned);
	check_trace_callback_type_mm_compaction_isolate_freepages(free_scanned);
	if (!on) {
		mmp_ignore(events);
		return;
	}
	/* Probes may have run on for a while after the point was off. */
	memset(&stamps, 0, sizeof(stamps));
	mmp_listen(events);
}

/* Nobody but the CPU says where: no memory policy of the application, no cpuset. */
static bool local_preferred(const struct vm_area_struct *vma)
{
	return !vma_policy(vma) && !current->mempolicy &&
	       node_isset(numa_node_id(), cpuset_current_mems_allowed);
}

/* See &mm_policy_ops.thp_gfp. */
gfp_t mmp_thp_gfp(struct vm_area_struct *vma, gfp_t gfp)
{
	struct mmp_profile *profile = mmp_profile_of(vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = settings->active[MM_POLICY_THP_GFP];

	/* What MADV_COLLAPSE began is no attempt of a fault. */
	mmp_stall_ends(&stamps);
	if (!policy) {
		count(profile, STOCK, 1);
		return gfp;
	}
	gfp = policy->thp_gfp(vma);
	if ((gfp & __GFP_THISNODE) && !local_preferred(vma))
		gfp &= ~__GFP_THISNODE;
	return gfp;
}

static unsigned int outcome_of(int node)
{
	if (node == NUMA_NO_NODE)
		return FAILED;
	return node == numa_mem_id() ? LOCAL : REMOTE;
}

/* See &mm_policy_ops.thp_done. */
void mmp_thp_done(struct vm_area_struct *vma, int order, struct folio *folio)
{
	struct mmp_profile *profile = mmp_profile_of(vma->vm_mm);
	int node = folio ? folio_nid(folio) : NUMA_NO_NODE;
	u64 ns = mmp_stall_ends(&stamps);

	trace_mmpolicy_thp_gfp(vma->vm_start, order, node, node == numa_mem_id(), ns);
	count(profile, ATTEMPTS, 1);
	count(profile, outcome_of(node) + clamp(order, MIN_ORDER, MAX_ORDER) - MIN_ORDER, 1);
	if (ns)
		mmp_count_stall(profile, &mmp_point_thp_gfp, STALL, ns);
}
