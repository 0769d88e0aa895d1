/* SPDX-License-Identifier: GPL-2.0 */
/* Times that tasks stall, counted as a sum and a histogram. */
#ifndef MMPOLICY_STALL_H
#define MMPOLICY_STALL_H

#include <linux/log2.h>
#include <linux/minmax.h>

#include "stamp.h"
#include "profile.h"

#define MMP_MIN_STALL	12	/* log2 of ns: the first bucket also counts times below 8 us */
#define MMP_MAX_STALL	31	/* log2 of ns: the last bucket also counts times above 2 s */

/* Names of the counters of a stall, for a table of counters from index @first on. */
#define MMP_STALL_COUNTERS(first)					\
	[first] = "stall_ns",						\
	"stall_ns_log2_12", "stall_ns_log2_13", "stall_ns_log2_14",	\
	"stall_ns_log2_15", "stall_ns_log2_16", "stall_ns_log2_17",	\
	"stall_ns_log2_18", "stall_ns_log2_19", "stall_ns_log2_20",	\
	"stall_ns_log2_21", "stall_ns_log2_22", "stall_ns_log2_23",	\
	"stall_ns_log2_24", "stall_ns_log2_25", "stall_ns_log2_26",	\
	"stall_ns_log2_27", "stall_ns_log2_28", "stall_ns_log2_29",	\
	"stall_ns_log2_30", "stall_ns_log2_31"

/**
 * mmp_count_stall - count the time that a task has stalled
 * @profile: profile of the task
 * @point: point of the counters
 * @first: index of the first of MMP_STALL_COUNTERS()
 * @ns: the time in ns
 */
static inline void mmp_count_stall(const struct mmp_profile *profile,
				   const struct mmp_point *point,
				   unsigned int first, u64 ns)
{
	unsigned int log = clamp(ilog2(ns | 1), MMP_MIN_STALL, MMP_MAX_STALL);

	mmp_count(profile, point, first, ns);
	mmp_count(profile, point, first + 1 + log - MMP_MIN_STALL, 1);
}

/**
 * mmp_stall_begins - record that current starts to stall, unless it has started
 * already
 * @stamps: table of start times
 */
static inline void mmp_stall_begins(struct mmp_stamps *stamps)
{
	if (!mmp_stamp_mine(stamps))
		mmp_stamp_begin(stamps, 0);
}

/**
 * mmp_stall_ends - record that current stops stalling
 * @stamps: the table of mmp_stall_begins()
 *
 * Return: length of the stall in ns; 0 if there was none, or its start is
 * unknown.
 */
static inline u64 mmp_stall_ends(struct mmp_stamps *stamps)
{
	struct mmp_stamp *mine = mmp_stamp_mine(stamps);

	return unlikely(mine) ? mmp_stamp_end(mine) : 0;
}

#endif /* MMPOLICY_STALL_H */
