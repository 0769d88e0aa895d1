// SPDX-License-Identifier: GPL-2.0
/*
 * Memory available to a fault: on each node, sampled ten times a second, and in
 * cgroups with a limit, read on demand.
 */
#include <linux/cpuset.h>
#include <linux/memcontrol.h>
#include <linux/mempolicy.h>
#include <linux/mm.h>
#include <linux/timer.h>
#include <linux/topology.h>

#include "../mmpolicy.h"
#include "available.h"
#include "limits.h"

#define SAMPLE_INTERVAL	(HZ / 10)
/*
 * A CPU may use this part of the spare memory before it checks again: 1/64, or
 * 1/nr_cpu_ids if that is less.
 */
#define SPARE_SHARE	64U
/*
 * While memory is short, a CPU may use a part of the pages left before it
 * checks again: 1/8, or 1/nr_cpu_ids if that is less; but at least 16 pages,
 * because order-0 pages are allocated in any case.
 */
#define TOLD_SHARE	8U
#define TOLD_LEAST	16UL

static struct mmp_sample samples[MAX_NUMNODES];
DEFINE_PER_CPU(struct mmp_spare, mmp_spare);

/*
 * Returns the share of a node's memory that is available, in 1/1000. Available
 * are the free pages above the high watermarks, and half of the file pages, as
 * in si_mem_available(): reclaim takes them first. The total counts pages that
 * processes can get: free, on LRU lists, or in slabs. Reserved pages, such as
 * those of hugetlb, are excluded.
 */
static unsigned int available_on_node(struct pglist_data *node)
{
	unsigned long file = atomic_long_read(&node->vm_stat[NR_ACTIVE_FILE]) +
			     atomic_long_read(&node->vm_stat[NR_INACTIVE_FILE]);
	unsigned long pages = file / 2, size = 0;
	struct zone *zone;
	int i;

	for (i = NR_LRU_BASE; i <= NR_SLAB_UNRECLAIMABLE_B; i++)
		size += atomic_long_read(&node->vm_stat[i]);
	for (zone = node->node_zones; zone < node->node_zones + MAX_NR_ZONES; zone++) {
		unsigned long free = zone_page_state(zone, NR_FREE_PAGES);

		size += free;
		pages += free - min(free, high_wmark_pages(zone));
	}
	/* A node without memory counts as ample, as its CPUs allocate from other nodes. */
	return mmp_share(pages, size);
}

static void available_sample(struct timer_list *timer);
/*
 * The timer is not deferrable, as an idle CPU must also notice memory that
 * other CPUs use up.
 */
static DEFINE_TIMER(sampler, available_sample);

static void available_sample(struct timer_list *timer)
{
	int nid;

	for_each_online_node(nid) {
		WRITE_ONCE(samples[nid].share, available_on_node(NODE_DATA(nid)));
		WRITE_ONCE(samples[nid].taken, jiffies);
	}
	mod_timer(&sampler, jiffies + SAMPLE_INTERVAL);
}

/**
 * mmp_available_watch - start or stop sampling memory, for one point
 * @on: true to start; each start needs a stop
 *
 * Context: may sleep; as for &mmp_point.switched, callers are serialised.
 */
void mmp_available_watch(bool on)
{
	static unsigned int watchers;

	if (on && !watchers++) {
		available_sample(&sampler);
		mmp_limits_watch(true);
	} else if (!on && !--watchers) {
		timer_delete_sync(&sampler);
		mmp_limits_watch(false);
	}
}

/*
 * Returns the share of memory (in 1/1000) available on this CPU's node if @vma may use the node and
 * the share is at least @enough. If not, returns the highest share of all allowed nodes.
 */
static unsigned int available_on_nodes(const struct vm_area_struct *vma, unsigned int enough)
{
	const nodemask_t *allowed = mmp_allowed_nodes(vma);
	int nid = numa_node_id();
	unsigned int most = 0;

	if (node_isset(nid, *allowed))
		most = mmp_sample_share(&samples[nid], jiffies);
	if (likely(most >= enough))
		return most;
	/* The page allocator falls back to other nodes before it reclaims. */
	for_each_node_mask(nid, *allowed)
		most = max(most, mmp_sample_share(&samples[nid], jiffies));
	return most;
}

#ifdef CONFIG_MEMCG
/*
 * Returns the pages that a cgroup can still get: those below its limit, plus half of its file
 * pages, which reclaim takes first.
 */
static unsigned long available_below(struct mem_cgroup *memcg, unsigned long limit)
{
	return limit - min(page_counter_read(&memcg->memory), limit) +
	       mmp_limits_file_pages(memcg) / 2;
}

/*
 * Returns the lowest share of a memory limit (in 1/1000) that is available among the cgroup of @mm
 * and its ancestors. Lowers *@pages to the pages that their limits leave.
 */
static unsigned int available_in_cgroup(const struct mm_struct *mm, unsigned long *pages)
{
	struct mem_cgroup *memcg = mem_cgroup_from_task(mmp_mm_owner(mm));
	unsigned int least = MMP_ALL;

	for (; memcg; memcg = parent_mem_cgroup(memcg)) {
		unsigned long limit = mmp_limit_of(memcg), left;

		if (limit == PAGE_COUNTER_MAX)
			continue;
		left = available_below(memcg, limit);
		*pages = min(*pages, left);
		least = min(least, mmp_share(left, limit));
	}
	return least;
}

/*
 * Returns the pages that the cgroup of @mm and its ancestors can give while
 * @enough of each limit (in 1/1000) stays available.
 */
static unsigned long available_spare(const struct mm_struct *mm, unsigned int enough)
{
	struct mem_cgroup *memcg = mem_cgroup_from_task(mmp_mm_owner(mm));
	unsigned long spare = PAGE_COUNTER_MAX;

	for (; memcg; memcg = parent_mem_cgroup(memcg)) {
		unsigned long limit = mmp_limit_of(memcg), left;

		if (limit == PAGE_COUNTER_MAX)
			continue;
		left = available_below(memcg, limit);
		spare = min(spare, left - min(left, mult_frac(limit, enough, 1000UL) + 1));
	}
	return spare;
}
#else
static unsigned long available_spare(const struct mm_struct *mm, unsigned int enough)
{
	return LONG_MAX;
}

static unsigned int available_in_cgroup(const struct mm_struct *mm, unsigned long *pages)
{
	return MMP_ALL;
}
#endif

/*
 * Per-CPU cache of the last answer of mmp_available(), because each fault calls
 * it while memory is short. Valid until the tick ends, or until the CPU has
 * taken its part of the memory (TOLD_SHARE). @left: pages that the limits of
 * cgroups allow. @until: value of @left at which the answer expires.
 */
static DEFINE_PER_CPU(struct {
	struct mmp_looked by;
	unsigned int share;
	long left;
	long until;
}, told);

static void available_looked(struct mmp_looked __percpu *looked,
			     const struct vm_area_struct *vma, unsigned int enough)
{
	this_cpu_write(looked->whom, mmp_looked_whom(vma));
	this_cpu_write(looked->enough, enough);
	this_cpu_write(looked->when, jiffies);
}

static bool available_is_told(const struct vm_area_struct *vma, unsigned int enough)
{
	return mmp_looked_for(&told.by, vma, enough) &&
	       raw_cpu_read(told.left) > raw_cpu_read(told.until);
}

static noinline void available_tell(const struct vm_area_struct *vma, unsigned int enough)
{
	unsigned long left = LONG_MAX, part;
	unsigned int share;

	mmp_limits_asked(enough);
	share = min(available_on_nodes(vma, enough), available_in_cgroup(vma->vm_mm, &left));
	available_looked(&told.by, vma, enough);
	this_cpu_write(told.share, share);
	part = max(left / max(TOLD_SHARE, nr_cpu_ids), TOLD_LEAST);
	this_cpu_write(told.left, left);
	this_cpu_write(told.until, (long)(left - part));
}

/**
 * mmp_available - share of memory that a VMA can get without much reclaim
 * @vma: the VMA
 * @enough: share that should be available, in 1/1000; 0 for no check
 * @pages: requested pages; reduced to the pages that cgroups allow
 *
 * Context: RCU read side, while mmp_available_watch() is on.
 * Return: the available share in 1/1000: of the node that the memory would come from, or of the
 *	limit of a cgroup, whichever is lower. The answer is at most one tick old, and uses
 *	the last sample of the node.
 */
unsigned int mmp_available(const struct vm_area_struct *vma, unsigned int enough,
			   unsigned long *pages)
{
	if (!enough)
		return MMP_ALL;
	if (!available_is_told(vma, enough))
		available_tell(vma, enough);
	*pages = min_t(long, *pages, max(raw_cpu_read(told.left), 0L));
	return raw_cpu_read(told.share);
}

/**
 * mmp_available_take - deduct memory taken after mmp_available()
 * @pages: number of pages
 *
 * Context: as for mmp_available(). If the task has migrated, the pages are deducted on the new
 *	CPU.
 */
void mmp_available_take(unsigned long pages)
{
	this_cpu_sub(told.left, pages);
}

/*
 * Returns true if memory is ample: after @pages more, at least @enough stays available. Called
 * after mmp_plenty() has returned false. Caches a part of the spare memory for this CPU, unless
 * that part is less than @pages.
 */
bool mmp_plenty_look(const struct vm_area_struct *vma, unsigned int enough,
		     unsigned long pages)
{
	unsigned long spare, share;

	if (available_is_told(vma, enough) && raw_cpu_read(told.share) < enough)
		return false;
	mmp_limits_asked(enough);
	spare = available_spare(vma->vm_mm, enough);
	if (spare < pages || available_on_nodes(vma, enough) < enough)
		return false;
	share = spare / max(SPARE_SHARE, nr_cpu_ids);
	if (share < pages)
		return true;
	available_looked(&mmp_spare.by, vma, enough);
	this_cpu_write(mmp_spare.pages, share - pages);
	return true;
}
