// SPDX-License-Identifier: GPL-2.0
/*
 * How much memory is left: of each node, looked at ten times a second, and of
 * cgroups with a limit, looked at when it is asked for.
 */
#include <linux/cgroup.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/timer.h>
#include <linux/topology.h>

#include "../mmpolicy.h"
#include "available.h"

#define SAMPLE_INTERVAL	(HZ / 10)
/* So many cgroups are looked at for the file pages below one. */
#define MAX_BELOW	32
/* What a CPU may give away at once, of the memory that could be spared. */
#define SPARE_SHARE	64

static struct mmp_sample samples[MAX_NUMNODES];
DEFINE_PER_CPU(struct mmp_spare, mmp_spare);

/*
 * Available are free pages above the high watermarks, and the file pages that
 * reclaim would take first: half of them, as si_mem_available() has it. Processes
 * can have what is free, on lists of reclaim or in slabs. What is reserved, such
 * as for hugetlb, is as if it were not there.
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
	/* CPUs of a node without memory take it from others. */
	return mmp_share(pages, size);
}

static void available_sample(struct timer_list *timer);
/* Not deferrable: what others use up an idle CPU has to tell as well. */
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
 * mmp_available_watch - start or stop looking at memory, for one point
 * @on: start? Each start is to be followed by a stop.
 *
 * Context: may sleep; as &mmp_point.switched, one at a time.
 */
void mmp_available_watch(bool on)
{
	static unsigned int watchers;

	if (on && !watchers++)
		available_sample(&sampler);
	else if (!on && !--watchers)
		timer_delete_sync(&sampler);
}

#ifdef CONFIG_MEMCG
/* The next cgroup below @top, parents first; RCU read side. */
static struct cgroup_subsys_state *available_next(struct cgroup_subsys_state *at,
						  struct cgroup_subsys_state *top)
{
	struct cgroup_subsys_state *next;

	next = list_first_or_null_rcu(&at->children, typeof(*at), sibling);
	for (; !next && at != top; at = at->parent)
		next = list_next_or_null_rcu(&at->parent->children, &at->sibling,
					     typeof(*at), sibling);
	return next;
}

/* With generations (MGLRU), lru_zone_size does not change; what is counted may lag behind. */
static unsigned long available_generations(const struct mem_cgroup_per_node *node, int zone)
{
	unsigned long pages = 0;
#ifdef CONFIG_LRU_GEN
	int gen;

	for (gen = 0; gen < MAX_NR_GENS; gen++)
		pages += max(READ_ONCE(node->lruvec.lrugen.nr_pages[gen][LRU_GEN_FILE][zone]), 0L);
#endif
	return pages;
}

static unsigned long available_file_pages(struct mem_cgroup *memcg)
{
	unsigned long pages = 0;
	int nid, zone;

	for_each_online_node(nid) {
		const struct mem_cgroup_per_node *node = memcg->nodeinfo[nid];

		for (zone = 0; zone < MAX_NR_ZONES; zone++)
			pages += READ_ONCE(node->lru_zone_size[zone][LRU_ACTIVE_FILE]) +
				 READ_ONCE(node->lru_zone_size[zone][LRU_INACTIVE_FILE]) +
				 available_generations(node, zone);
	}
	return pages;
}

/* Each cgroup counts its own; of very many, only some are looked at. */
static unsigned long available_file_pages_below(struct mem_cgroup *memcg)
{
	struct cgroup_subsys_state *css = &memcg->css;
	unsigned long pages = 0;
	int n;

	for (n = 0; css && n < MAX_BELOW; n++, css = available_next(css, &memcg->css))
		pages += available_file_pages(mem_cgroup_from_css(css));
	return pages;
}

static unsigned long available_limit(const struct mem_cgroup *memcg)
{
	return min(READ_ONCE(memcg->memory.max), READ_ONCE(memcg->memory.high));
}

/*
 * Of the cgroup of @mm, and of all above it, the least. File pages are only
 * counted where it comes to them.
 */
static unsigned int available_in_cgroup(const struct mm_struct *mm, unsigned int enough,
					unsigned long *pages)
{
	struct mem_cgroup *memcg = mem_cgroup_from_task(mmp_mm_owner(mm));
	unsigned int least = MMP_ALL;

	for (; memcg; memcg = parent_mem_cgroup(memcg)) {
		unsigned long limit = available_limit(memcg), left;

		if (limit == PAGE_COUNTER_MAX)
			continue;
		left = limit - min(page_counter_read(&memcg->memory), limit);
		if (mmp_share(left, limit) >= enough && left >= *pages)
			continue;
		left += available_file_pages_below(memcg) / 2;
		*pages = min(*pages, left);
		least = min(least, mmp_share(left, limit));
	}
	return least;
}

/* What the cgroup of @mm and those above it could spare; no file pages. */
static unsigned long available_spare(const struct mm_struct *mm, unsigned int enough)
{
	struct mem_cgroup *memcg = mem_cgroup_from_task(mmp_mm_owner(mm));
	unsigned long spare = PAGE_COUNTER_MAX;

	for (; memcg; memcg = parent_mem_cgroup(memcg)) {
		unsigned long limit = available_limit(memcg), taken;

		if (limit == PAGE_COUNTER_MAX)
			continue;
		taken = page_counter_read(&memcg->memory) +
			mult_frac(limit, enough, 1000UL) + 1;
		spare = min(spare, limit - min(taken, limit));
	}
	return spare;
}
#else
static unsigned long available_spare(const struct mm_struct *mm, unsigned int enough)
{
	return LONG_MAX;
}

static unsigned int available_in_cgroup(const struct mm_struct *mm, unsigned int enough,
					unsigned long *pages)
{
	return MMP_ALL;
}
#endif

/**
 * mmp_available - memory that an address space can have without much reclaim
 * @mm: the address space
 * @enough: how much there should be, in 1/1000; 0 for any
 * @pages: how many are wanted; comes back as no more than cgroups allow
 *
 * Context: RCU read side, while mmp_available_watch() is on.
 * Return: in 1/1000 of the node of this CPU as of the last look, or of the limit
 * of a cgroup, whatever is less; %MMP_ALL may stand for more than @enough.
 */
unsigned int mmp_available(const struct mm_struct *mm, unsigned int enough,
			   unsigned long *pages)
{
	if (!enough)
		return MMP_ALL;
	return min(mmp_sample_share(&samples[numa_node_id()], jiffies),
		   available_in_cgroup(mm, enough, pages));
}

/* mmp_plenty(), with a look. What is not plenty may be enough all the same. */
bool mmp_plenty_look(const struct mm_struct *mm, unsigned int enough,
		     unsigned long pages)
{
	unsigned long spare = available_spare(mm, enough) / SPARE_SHARE;

	if (spare < pages ||
	    mmp_sample_share(&samples[numa_node_id()], jiffies) < enough)
		return false;
	this_cpu_write(mmp_spare.mm, mm);
	this_cpu_write(mmp_spare.enough, enough);
	this_cpu_write(mmp_spare.when, jiffies);
	this_cpu_write(mmp_spare.pages, spare - pages);
	return true;
}
