/* SPDX-License-Identifier: GPL-2.0 */
/* Counters of how long something took: a sum in ns, then a histogram. */
#ifndef MMPOLICY_STALL_H
#define MMPOLICY_STALL_H

#include <linux/log2.h>
#include <linux/minmax.h>

#include "mmpolicy.h"

#define MMP_MIN_STALL	12	/* log2 of ns: what took less than 8 us */
#define MMP_MAX_STALL	31	/* and what took more than 2 s */

/* Their names, from the index @first of a table of counters on. */
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
 * mmp_count_stall - count a time
 * @profile: whose
 * @point: where
 * @first: index of the first of MMP_STALL_COUNTERS()
 * @ns: the time
 */
static inline void mmp_count_stall(const struct mmp_profile *profile,
				   const struct mmp_point *point,
				   unsigned int first, u64 ns)
{
	unsigned int log = clamp(ilog2(ns | 1), MMP_MIN_STALL, MMP_MAX_STALL);

	mmp_count(profile, point, first, ns);
	mmp_count(profile, point, first + 1 + log - MMP_MIN_STALL, 1);
}

#endif /* MMPOLICY_STALL_H */
