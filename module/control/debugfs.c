// SPDX-License-Identifier: GPL-2.0
/*
 * /sys/kernel/debug/mmpolicy: counters, which are not ABI. Without debugfs, no
 * counters can be read.
 */
#include <linux/cleanup.h>
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/seq_file.h>

#include "../sense/fault_time.h"
#include "../sense/observe.h"
#include "control.h"

static struct dentry *root;

static u64 debugfs_sum(const u64 __percpu *counter)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*per_cpu_ptr(counter, cpu));
	return sum;
}

static void debugfs_show_fault_times(struct seq_file *m, const struct mmp_stats *stats)
{
	u64 __percpu *took = mmp_fault_counters(stats->profile, stats->point);
	int i;

	seq_printf(m, "fault_ns %llu\n", debugfs_sum(&took[MMP_FAULT_SUM]));
	for (i = 0; i < MMP_BUCKETS; i++)
		seq_printf(m, "fault_ns_log2_%lu_%lu %llu\n",
			   MMP_FIRST_OCTAVE + i / MMP_OCTAVE, i % MMP_OCTAVE,
			   debugfs_sum(&took[i]));
	if (stats->point == MM_POLICY_ANON_ORDER)
		seq_printf(m, "fault_missed %llu\n",
			   debugfs_sum(&took[MMP_FAULT_MISSED]));
}

static int mmp_stats_show(struct seq_file *m, void *unused)
{
	const struct mmp_stats *stats = m->private;
	const struct mmp_point *point = mmp_parts->points[stats->point];
	u64 __percpu *counters = mmp_counters(stats->profile, point);
	unsigned int i;

	for (i = 0; i < point->nr_counters; i++)
		seq_printf(m, "%s %llu\n", point->counters[i],
			   debugfs_sum(&counters[i]));
	if (stats->point < MMP_FAULT_POINTS)
		debugfs_show_fault_times(m, stats);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(mmp_stats);

static int mmp_now_show(struct seq_file *m, void *unused)
{
	const struct mmp_stats *stats = m->private;

	seq_printf(m, "%llu\n",
		   mmp_parts->points[stats->point]->read_now(stats->profile));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(mmp_now);

static int mmp_units_show(struct seq_file *m, void *unused)
{
	mmp_experiment_units(m);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(mmp_units);

static int debugfs_measure_get(void *unused, u64 *value)
{
	*value = static_key_enabled(&mmp_measuring);
	return 0;
}

static int debugfs_measure_set(void *unused, u64 value)
{
	if (value > 1)
		return -ERANGE;
	guard(mutex)(&mmp_lock);
	if (value == static_key_enabled(&mmp_measuring))
		return 0;
	if (value)
		static_branch_enable(&mmp_measuring);
	else
		static_branch_disable(&mmp_measuring);
	mmp_look_at(value);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(measure_fops, debugfs_measure_get, debugfs_measure_set, "%llu\n");

/*
 * Creates the debugfs files of a profile. Errors are ignored, as usual for
 * debugfs: the module works without it.
 */
void mmp_debugfs_add(struct mmp_profile *profile)
{
	int i;

	profile->debugfs = debugfs_create_dir(profile->name, root);
	for (i = 0; i < MM_POLICY_POINTS; i++) {
		const struct mmp_point *point = mmp_parts->points[i];
		struct dentry *dir;

		if (point->host && profile != &mmp_default)
			continue;
		if (!point->nr_counters && i >= MMP_FAULT_POINTS)
			continue;
		profile->stats[i] = (struct mmp_stats){ profile, i };
		dir = debugfs_create_dir(point->name, profile->debugfs);
		debugfs_create_file("stats", 0444, dir, &profile->stats[i],
				    &mmp_stats_fops);
		if (point->now)
			debugfs_create_file(point->now, 0444, dir,
					    &profile->stats[i], &mmp_now_fops);
	}
}

void mmp_debugfs_remove(struct mmp_profile *profile)
{
	debugfs_remove(profile->debugfs);
}

void mmp_debugfs_init(void)
{
	root = debugfs_create_dir("mmpolicy", NULL);
	debugfs_create_file("measure", 0600, root, NULL, &measure_fops);
	debugfs_create_file("units", 0444,
			    debugfs_create_dir("experiment", root), NULL,
			    &mmp_units_fops);
	mmp_debugfs_add(&mmp_default);
}

void mmp_debugfs_exit(void)
{
	debugfs_remove(root);
}
