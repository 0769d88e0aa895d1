// SPDX-License-Identifier: GPL-2.0
/* How much memory each node has left, looked at ten times a second. */
#include <linux/mm.h>
#include <linux/workqueue.h>

#include "available.h"

#define SAMPLE_INTERVAL	(HZ / 10)

/* In 1/1000 of the node's size. */
u16 mmp_node_available[MAX_NUMNODES];

/*
 * Free memory above the high watermarks, and the file pages that reclaim
 * would take first: half of them, as si_mem_available() has it.
 */
static unsigned int available_on_node(struct pglist_data *node)
{
	unsigned long file = atomic_long_read(&node->vm_stat[NR_ACTIVE_FILE]) +
			     atomic_long_read(&node->vm_stat[NR_INACTIVE_FILE]);
	unsigned long pages = file / 2, size = 0;
	struct zone *zone;

	for (zone = node->node_zones; zone < node->node_zones + MAX_NR_ZONES; zone++) {
		unsigned long free = zone_page_state(zone, NR_FREE_PAGES);

		size += zone_managed_pages(zone);
		pages += free - min(free, high_wmark_pages(zone));
	}
	/* CPUs of a node without memory take it from others. */
	return size ? min(pages * 1000 / size, 1000UL) : 1000;
}

static void available_sample(struct work_struct *work)
{
	int nid;

	for_each_online_node(nid) {
		unsigned int now = available_on_node(NODE_DATA(nid));

		if (READ_ONCE(mmp_node_available[nid]) != now)
			WRITE_ONCE(mmp_node_available[nid], now);
	}
	schedule_delayed_work(to_delayed_work(work), SAMPLE_INTERVAL);
}

static DECLARE_DEFERRABLE_WORK(sampler, available_sample);
static unsigned int watchers;

/**
 * mmp_available_watch - start or stop looking at memory, for one point
 * @on: start? Each start is to be followed by a stop.
 *
 * Context: may sleep; as &mmp_point.switched, one at a time.
 */
void mmp_available_watch(bool on)
{
	if (on && !watchers++)
		available_sample(&sampler.work);
	else if (!on && !--watchers)
		cancel_delayed_work_sync(&sampler);
}
