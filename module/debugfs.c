// SPDX-License-Identifier: GPL-2.0
/* /sys/kernel/debug/mmpolicy: counters. No ABI; without debugfs, no counters. */
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/seq_file.h>

#include "mmpolicy.h"

/* Count the cost of decisions, in ticks of get_cycles()? */
DEFINE_STATIC_KEY_FALSE(mmp_measuring);

static struct dentry *root;

static u64 counter_sum(const struct mmp_profile *profile, unsigned int index)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu_ptr(profile->counters, cpu)[index]);
	return sum;
}

static int stats_show(struct seq_file *m, void *unused)
{
	const struct mmp_point *point = m->private;
	unsigned int i;

	for (i = 0; i < point->nr_counters; i++)
		seq_printf(m, "%s %llu\n", point->counters[i],
			   counter_sum(&mmp_default, point->first_counter + i));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static int measure_get(void *unused, u64 *value)
{
	*value = static_key_enabled(&mmp_measuring);
	return 0;
}

static int measure_set(void *unused, u64 value)
{
	if (value > 1)
		return -ERANGE;
	if (value)
		static_branch_enable(&mmp_measuring);
	else
		static_branch_disable(&mmp_measuring);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(measure_fops, measure_get, measure_set, "%llu\n");

/* Errors are ignored, as is usual for debugfs: it is not needed to work. */
void mmp_debugfs_init(void)
{
	struct dentry *dir;
	int i;

	root = debugfs_create_dir("mmpolicy", NULL);
	debugfs_create_file("measure", 0600, root, NULL, &measure_fops);
	dir = debugfs_create_dir(mmp_default.name, root);
	for (i = 0; i < MM_POLICY_POINTS; i++) {
		if (!mmp_points[i]->nr_counters)
			continue;
		debugfs_create_file("stats", 0444,
				    debugfs_create_dir(mmp_points[i]->name, dir),
				    mmp_points[i], &stats_fops);
	}
}

void mmp_debugfs_exit(void)
{
	debugfs_remove(root);
}
