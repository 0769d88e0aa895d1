/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Counts the times that page faults take, by profile and point; see
 * fault_time.c.
 */
#ifndef MMPOLICY_FAULT_TIME_H
#define MMPOLICY_FAULT_TIME_H

#include <linux/jump_label.h>
#include <linux/percpu.h>

#include "../mmpolicy.h"
#include "octaves.h"

struct mmp_draw;

/*
 * Indexes of the counters that follow the MMP_BUCKETS histogram buckets, for
 * each of the first MMP_FAULT_POINTS points.
 */
#define MMP_FAULT_SUM		MMP_BUCKETS		/* sum of all times in ns */
#define MMP_FAULT_MISSED	(MMP_BUCKETS + 1)
#define MMP_FAULT_COUNTERS	(MMP_BUCKETS + 2)
#define MMP_FAULT_POINTS	(MM_POLICY_COMPACT + 1)	/* points that decide in faults */

DECLARE_STATIC_KEY_FALSE(mmp_timing);

/*
 * State that samples the faults to time. If mmp_draw_due(&mmp_fault_draw) is
 * true, the code that called it must call mmp_fault_begins() for this fault.
 */
DECLARE_PER_CPU(struct mmp_draw, mmp_fault_draw);

bool mmp_fault_time(bool on);
void mmp_fault_begins(const struct vm_fault *vmf, enum mm_policy_site site);
void mmp_fault_asked(enum mm_policy_point point);
void mmp_fault_ends(const struct vm_fault *vmf);
u64 __percpu *mmp_fault_counters(const struct mmp_profile *profile,
				 enum mm_policy_point point);

#endif /* MMPOLICY_FAULT_TIME_H */
