// SPDX-License-Identifier: GPL-2.0
/* The callbacks to call at each point, and the per-CPU state of faults. */
#include <linux/rcupdate.h>

#include "../sense/whose.h"
#include "direct.h"

const struct mm_policy_ops __rcu *mmp_asked[MM_POLICY_ANON_PAGES + 1];

DEFINE_PER_CPU(struct mmp_question, mmp_question);
DEFINE_PER_CPU(struct mmp_latest, mmp_undecided);
DEFINE_PER_CPU(unsigned long, mmp_undecided_count);
DEFINE_PER_CPU(struct mmp_in_advance, mmp_in_advance);

/**
 * mm_policy_enable - call @ops at a point, or stop calling it
 * @ops: the callbacks
 * @point: the point
 * @on: if false, callbacks may still run for one RCU grace period
 */
void mm_policy_enable(const struct mm_policy_ops *ops, enum mm_policy_point point, bool on)
{
	if (point > MM_POLICY_ANON_PAGES)
		return;
	rcu_assign_pointer(mmp_asked[point], on ? ops : NULL);
	/*
	 * Invalidates two caches of all CPUs: answers that policies have given
	 * in advance, and tasks that have no policy, whose faults skip the
	 * module.
	 */
	if (point == MM_POLICY_ANON_PAGES || point == MM_POLICY_ANON_ORDER)
		mmp_whose_outdate_tasks();
}
