/* SPDX-License-Identifier: GPL-2.0 */
/* Profiles: named settings, and their counters. */
#ifndef MMPOLICY_PROFILE_H
#define MMPOLICY_PROFILE_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>

#include "../mmpolicy.h"

#define MMP_NAME_SIZE	32	/* bytes of the name of a profile, with the NUL */

struct dentry;

/**
 * struct mmp_settings - settings of a profile, published as a whole
 * @rcu: frees the structure after its last reader
 * @active: the policy of each point
 * @shadow: the shadow policy of each point, which is asked but not obeyed
 * @values: values of all knobs, by slot
 */
struct mmp_settings {
	struct rcu_head rcu;
	const struct mmp_policy *active[MM_POLICY_POINTS];
	const struct mmp_policy *shadow[MM_POLICY_POINTS];
	u32 values[];
};

/**
 * struct mmp_stats - the profile and the point whose counters a debugfs file
 * shows
 * @profile: the profile
 * @point: the point
 */
struct mmp_stats {
	struct mmp_profile *profile;
	enum mm_policy_point point;
};

/**
 * struct mmp_profile - a named set of policies and knob values
 * @name: name in sysfs and debugfs
 * @node: link in the list of all profiles; once the profile is deleted, in the
 *	list of profiles to free
 * @users: number of bindings and of arms of the experiment that use it
 * @gone: refuses writes: some of its files are still missing, or it is deleted;
 *	under mmp_lock
 * @dirs: its sysfs directories, parents first
 * @debugfs: its debugfs directory
 * @stats: for each point, the data of its debugfs file
 * @settings: immutable; replaced as a whole
 * @nodes: for each point, memory of its &mmp_point.node_size for each NUMA node
 * @counters: counters of all points in turn, followed by the fault times
 */
struct mmp_profile {
	char name[MMP_NAME_SIZE];
	struct list_head node;
	atomic_t users;
	bool gone;
	struct list_head dirs;
	struct dentry *debugfs;
	struct mmp_stats stats[MM_POLICY_POINTS];
	struct mmp_settings __rcu *settings;
	void *nodes[MM_POLICY_POINTS];
	u64 __percpu *counters;
};

extern struct mmp_profile mmp_default;

/*
 * Number of counters of all points, set at load. In @counters of a profile, the
 * counters of fault times follow them.
 */
extern unsigned int mmp_nr_counters;

static inline u64 __percpu *mmp_counters(const struct mmp_profile *profile,
					 const struct mmp_point *point)
{
	return profile->counters + point->first_counter;
}

/*
 * index of the counter of calls without a policy, at points that have this
 * counter
 */
#define MMP_STOCK	0

/**
 * mmp_count - add to a counter of a point
 * @profile: profile that decided
 * @point: the point
 * @counter: index into its counters
 * @n: amount to add
 */
static inline void mmp_count(const struct mmp_profile *profile,
			     const struct mmp_point *point,
			     unsigned int counter, u64 n)
{
	this_cpu_add(mmp_counters(profile, point)[counter], n);
}

#endif /* MMPOLICY_PROFILE_H */
