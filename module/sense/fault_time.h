/* SPDX-License-Identifier: GPL-2.0 */
/* How long faults take, counted by profile and point; see fault_time.c. */
#ifndef MMPOLICY_FAULT_TIME_H
#define MMPOLICY_FAULT_TIME_H

#include <linux/jump_label.h>
#include <linux/percpu.h>

#include "../mmpolicy.h"

struct mmp_draw;

#define MMP_FAULT_TIMES		32	/* log2 of nanoseconds */
#define MMP_FAULT_MISSED	MMP_FAULT_TIMES
#define MMP_FAULT_COUNTERS	(MMP_FAULT_TIMES + 1)

DECLARE_STATIC_KEY_FALSE(mmp_timing);

/* Which faults are timed; once one is due, mmp_fault_begins() has to follow. */
DECLARE_PER_CPU(struct mmp_draw, mmp_fault_draw);

bool mmp_fault_time(bool on);
void mmp_fault_begins(const struct vm_fault *vmf, enum mm_policy_site site);
void mmp_fault_asked(enum mm_policy_point point);
void mmp_fault_ends(const struct vm_fault *vmf);
u64 __percpu *mmp_fault_counters(const struct mmp_profile *profile,
				 enum mm_policy_point point);

#endif /* MMPOLICY_FAULT_TIME_H */
