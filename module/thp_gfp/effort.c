// SPDX-License-Identifier: GPL-2.0
/*
 * Counts and times, system-wide, the efforts to allocate memory: direct
 * compaction, direct reclaim and wake-ups of kswapd. It uses tracepoints,
 * because no hook reports these.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/preempt.h>
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/string.h>

struct compact_control;			/* for the next line */
#include <trace/events/compaction.h>
#include <trace/events/vmscan.h>

#include "../sense/events.h"
#include "../sense/whose.h"
#include "effort.h"

static const struct mmp_point *counted_at;
static unsigned int first_counter;

/*
 * Adds to a counter if current is a user task. Kernel threads and interrupts
 * have no page faults.
 */
static void effort_count_current(unsigned int counter, u64 n)
{
	if (!in_task() || current->flags & PF_KTHREAD)
		return;
	guard(rcu)();
	mmp_count(mmp_profile_of(current->mm), counted_at, first_counter + counter, n);
}

/*
 * Returns true if an allocation is for a large folio, by its gfp flags:
 * GFP_TRANSHUGE_LIGHT uses no reserves and prints no warning.
 */
static bool effort_for_large(gfp_t gfp)
{
	const gfp_t large = __GFP_NOMEMALLOC | __GFP_NOWARN;

	return (gfp & large) == large;
}

static void effort_count_reclaim(unsigned int counter, gfp_t gfp)
{
	effort_count_current(counter + !effort_for_large(gfp), 1);
}

struct mmp_stamps mmp_effort_stamps;

/*
 * Starts timing an effort for a large folio. khugepaged is a kernel thread, so
 * its efforts are not timed.
 */
static void effort_begins(gfp_t gfp)
{
	if (effort_for_large(gfp) && !(current->flags & PF_KTHREAD))
		mmp_stall_begins(&mmp_effort_stamps);
}

static void effort_compaction_begins(void *unused, int order, gfp_t gfp, int prio)
{
	effort_begins(gfp);
}

static void effort_direct_reclaim_begins(void *unused, MMP_RECLAIM_ARGS)
{
	gfp = order ? gfp : 0;
	effort_count_reclaim(MMP_EFFORT_RECLAIM, gfp);
	effort_begins(gfp);
}

/*
 * Counts a reclaim in a cgroup. This tracepoint does not report the order, so
 * only @gfp tells whether the reclaim is for a large folio.
 */
static void effort_memcg_reclaim_begins(void *unused, MMP_RECLAIM_ARGS)
{
	effort_count_reclaim(MMP_EFFORT_MEMCG, gfp);
}

static void effort_kswapd_is_woken(void *unused, int nid, int zid, int order, gfp_t gfp)
{
	effort_count_reclaim(MMP_EFFORT_KSWAPD, order ? gfp : 0);
}

/*
 * Counts pages scanned by compaction in user tasks, for allocations of large
 * folios and of base pages.
 */
static void effort_migrate_scanned(void *unused, unsigned long start_pfn,
				   unsigned long end_pfn, unsigned long nr_scanned,
				   unsigned long nr_taken)
{
	effort_count_current(MMP_EFFORT_MIGRATE, nr_scanned);
}

static void effort_free_scanned(void *unused, unsigned long start_pfn,
				unsigned long end_pfn, unsigned long nr_scanned,
				unsigned long nr_taken)
{
	effort_count_current(MMP_EFFORT_FREE, nr_scanned);
}

static struct mmp_event events[] = {
	{ "mm_compaction_try_to_compact_pages", effort_compaction_begins },
	{ "mm_vmscan_direct_reclaim_begin", effort_direct_reclaim_begins },
	{ "mm_vmscan_memcg_reclaim_begin", effort_memcg_reclaim_begins },
	{ "mm_vmscan_wakeup_kswapd", effort_kswapd_is_woken },
	{ "mm_compaction_isolate_migratepages", effort_migrate_scanned },
	{ "mm_compaction_isolate_freepages", effort_free_scanned },
	{ "mm_compaction_fast_isolate_freepages", effort_free_scanned },
	{}
};

/**
 * mmp_effort_watch - attach or detach the probes that count and time direct
 * compaction and reclaim
 * @point: the point with the counters, or %NULL to detach
 * @first: index of the first of MMP_EFFORT_COUNTERS() in @point
 *
 * Context: as for &mmp_point.switched.
 */
void mmp_effort_watch(const struct mmp_point *point, unsigned int first)
{
	int err;

	check_trace_callback_type_mm_compaction_try_to_compact_pages(effort_compaction_begins);
	check_trace_callback_type_mm_vmscan_direct_reclaim_begin(effort_direct_reclaim_begins);
	check_trace_callback_type_mm_vmscan_wakeup_kswapd(effort_kswapd_is_woken);
	check_trace_callback_type_mm_compaction_isolate_migratepages(effort_migrate_scanned);
	check_trace_callback_type_mm_compaction_isolate_freepages(effort_free_scanned);
	check_trace_callback_type_mm_compaction_fast_isolate_freepages(effort_free_scanned);
	if (!point) {
		mmp_ignore(events);
		return;
	}
	counted_at = point;
	first_counter = first;
	/*
	 * Clears start times that probes have stored after the point was
	 * switched off.
	 */
	memset(&mmp_effort_stamps, 0, sizeof(mmp_effort_stamps));
	err = mmp_listen(events);
	if (err)
		pr_warn("thp_gfp: cannot attach to tracepoints (error %d), efforts and stalls are not counted\n",
			err);
}
