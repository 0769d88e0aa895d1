// SPDX-License-Identifier: GPL-2.0
/*
 * File pages of cgroups near their limit, which reclaim would take first. The
 * kernel counts file pages per cgroup without its descendants, so a worker sums
 * them up. It runs ten times a second, or less often if it would take more than
 * 1/32 of a CPU. Faults read the stored sums.
 */
#include <linux/cgroup.h>
#include <linux/ktime.h>
#include <linux/memcontrol.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "../mmpolicy.h"
#include "limits.h"

/* File pages of cgroups below this depth of the hierarchy are not counted. */
#define LEVELS		32
/* The worker visits this many cgroups before it yields the CPU. */
#define AT_ONCE		64
/*
 * Number of low bits that hold the number of the walk in an entry of
 * @file_pages; the pages are in the bits above.
 */
#define WALK_BITS	8

static void limits_walk(struct work_struct *work);
static DECLARE_DELAYED_WORK(walker, limits_walk);
static DEFINE_XARRAY(file_pages);	/* indexed by mmp_memcg_slot() */
static unsigned long good_until;	/* jiffies: when sums of the last walk expire */
static unsigned int most_asked;		/* highest value passed to mmp_limits_asked() */

/**
 * mmp_limit_of - limit of a cgroup
 * @memcg: the cgroup
 *
 * Return: pages up to memory.max or memory.high, whichever is lower; %PAGE_COUNTER_MAX without
 *	a limit.
 */
unsigned long mmp_limit_of(const struct mem_cgroup *memcg)
{
	return min(READ_ONCE(memcg->memory.max), READ_ONCE(memcg->memory.high));
}

/**
 * mmp_limits_asked - record the share of memory that a policy requires
 * @enough: memory is short if less than this is available, in 1/1000
 */
void mmp_limits_asked(unsigned int enough)
{
	if (unlikely(enough > READ_ONCE(most_asked)))
		WRITE_ONCE(most_asked, enough);
}

/**
 * mmp_limits_file_pages - file pages in a cgroup and its descendants
 * @memcg: the cgroup
 *
 * Context: RCU read side.
 * Return: pages as of the last walk; 0 if that is too long ago, or if the cgroup is far from
 *	its limit.
 */
unsigned long mmp_limits_file_pages(struct mem_cgroup *memcg)
{
	void *entry;

	if (time_after(jiffies, READ_ONCE(good_until)))
		return 0;
	entry = xa_load(&file_pages, mmp_memcg_slot(memcg));
	return entry ? xa_to_value(entry) >> WALK_BITS : 0;
}

/*
 * Returns the file pages that MGLRU counts for a cgroup, by generation; MGLRU
 * does not update lru_zone_size. The counts may be a little out of date.
 */
static unsigned long limits_generations(const struct mem_cgroup_per_node *node, int zone)
{
	unsigned long pages = 0;
#ifdef CONFIG_LRU_GEN
	int gen;

	for (gen = 0; gen < MAX_NR_GENS; gen++)
		pages += max(READ_ONCE(node->lruvec.lrugen.nr_pages[gen][LRU_GEN_FILE][zone]), 0L);
#endif
	return pages;
}

/* Returns the file pages of a cgroup without its descendants. */
static unsigned long limits_own_pages(const struct mem_cgroup *memcg)
{
	unsigned long pages = 0;
	int nid, zone;

	for_each_online_node(nid) {
		const struct mem_cgroup_per_node *node = memcg->nodeinfo[nid];

		for (zone = 0; zone < MAX_NR_ZONES; zone++)
			pages += READ_ONCE(node->lru_zone_size[zone][LRU_ACTIVE_FILE]) +
				 READ_ONCE(node->lru_zone_size[zone][LRU_INACTIVE_FILE]) +
				 limits_generations(node, zone);
	}
	return pages;
}

/*
 * Returns true if the cgroup is so close to its limit that its file pages
 * matter, or soon will.
 */
static bool limits_is_near(struct mem_cgroup *memcg)
{
	unsigned long limit = mmp_limit_of(memcg), used = page_counter_read(&memcg->memory);

	return limit != PAGE_COUNTER_MAX &&
	       mmp_share(limit - min(used, limit), limit) < 2 * READ_ONCE(most_asked);
}

/**
 * struct walk - state of a walk over cgroups
 * @level: level of the cgroup, from 0
 * @near: bitmap of the levels down to this one whose cgroup is near its limit
 * @number: number of the walk
 * @pages: file pages summed up so far, for each level
 */
struct walk {
	unsigned int level;
	u32 near;
	u8 number;
	unsigned long pages[LEVELS];
};

static void limits_enter(struct walk *walk, struct cgroup_subsys_state *css)
{
	struct mem_cgroup *memcg = mem_cgroup_from_css(css);

	if (limits_is_near(memcg))
		walk->near |= BIT(walk->level);
	walk->pages[walk->level] = walk->near ? limits_own_pages(memcg) : 0;
}

/* Stores the file pages of a cgroup. If the entry cannot be allocated, they count as 0. */
static void limits_leave(struct walk *walk, struct cgroup_subsys_state *css)
{
	unsigned long pages = walk->pages[walk->level];

	if (walk->near & BIT(walk->level))
		xa_store(&file_pages, mmp_memcg_slot(mem_cgroup_from_css(css)),
			 xa_mk_value(pages << WALK_BITS | walk->number),
			 GFP_NOWAIT | __GFP_NOWARN);
	walk->near &= ~BIT(walk->level);
	if (walk->level)
		walk->pages[--walk->level] += pages;
}

/* Returns the next cgroup in preorder; NULL after the last one. */
static struct cgroup_subsys_state *limits_next(struct walk *walk,
					       struct cgroup_subsys_state *css)
{
	struct cgroup_subsys_state *next = NULL, *parent;

	if (walk->level < LEVELS - 1)
		next = list_first_or_null_rcu(&css->children, typeof(*css), sibling);
	if (next) {
		walk->level++;
		return next;
	}
	for (; walk->level; css = parent) {
		parent = css->parent;
		limits_leave(walk, css);
		next = list_next_or_null_rcu(&parent->children, &css->sibling, typeof(*css),
					     sibling);
		if (next) {
			walk->level++;
			return next;
		}
	}
	limits_leave(walk, css);
	return NULL;
}

/*
 * Yields the CPU during a walk. If the cgroup is removed in between, its pointer
 * to the next cgroup stays valid, so the walk can go on.
 */
static void limits_rest(struct cgroup_subsys_state *css)
{
	if (!css_tryget(css))
		return;
	rcu_read_unlock();
	cond_resched();
	rcu_read_lock();
	css_put(css);
}

/*
 * Drops entries that walk @number has not stored: the cgroup was removed, or is far from its
 * limit.
 */
static void limits_forget_others(u8 number)
{
	unsigned long slot;
	void *entry;

	xa_for_each(&file_pages, slot, entry)
		if ((u8)xa_to_value(entry) != number)
			xa_erase(&file_pages, slot);
}

static void limits_walk(struct work_struct *work)
{
	struct cgroup_subsys_state *css;
	u64 begin = ktime_get_ns(), took;
	unsigned long pause;
	static struct walk walk;
	unsigned int n = 0;

	walk = (struct walk){ .number = walk.number + 1 };
	rcu_read_lock();
	/* A kernel worker always runs in the root cgroup, so the walk begins there. */
	css = task_css(current, memory_cgrp_id);
	for (; css; css = limits_next(&walk, css)) {
		limits_enter(&walk, css);
		if (!(++n % AT_ONCE))
			limits_rest(css);
	}
	rcu_read_unlock();
	limits_forget_others(walk.number);
	took = ktime_get_ns() - begin;
	pause = nsecs_to_jiffies(mmp_walk_pause(took));
	/*
	 * The sums of file pages are valid until the next walk ends, even if that walk takes twice
	 * as long.
	 */
	WRITE_ONCE(good_until, jiffies + pause + nsecs_to_jiffies(2 * took) +
		   msecs_to_jiffies(MMP_STALE_MS));
	queue_delayed_work(mmp_unbound_wq, &walker, pause);
}

/**
 * mmp_limits_watch - start or stop walking over cgroups
 * @on: true to start
 *
 * Context: may sleep; callers are serialised.
 */
void mmp_limits_watch(bool on)
{
	if (mem_cgroup_disabled())
		return;
	if (on) {
		queue_delayed_work(mmp_unbound_wq, &walker, 0);
		return;
	}
	cancel_delayed_work_sync(&walker);
	xa_destroy(&file_pages);
	most_asked = 0;
}
