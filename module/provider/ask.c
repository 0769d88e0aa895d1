// SPDX-License-Identifier: GPL-2.0
/* Which ops of the module answer at each point. */
#include <linux/rcupdate.h>

#include "../sense/whose.h"
#include "direct.h"

const struct mm_policy_ops __rcu *mmp_asked[MM_POLICY_ANON_PAGES + 1];

DEFINE_PER_CPU(struct mmp_question, mmp_question);
DEFINE_PER_CPU(struct mmp_latest, mmp_undecided);
DEFINE_PER_CPU(unsigned long, mmp_undecided_count);
DEFINE_PER_CPU(struct mmp_in_advance, mmp_in_advance);

/**
 * mm_policy_enable - ask @ops at a point, or stop asking
 * @ops: who
 * @point: which
 * @on: if false, callbacks may still run for one RCU grace period
 */
void mm_policy_enable(const struct mm_policy_ops *ops, enum mm_policy_point point, bool on)
{
	if (point > MM_POLICY_ANON_PAGES)
		return;
	rcu_assign_pointer(mmp_asked[point], on ? ops : NULL);
	/* CPUs have kept answers in advance, or tasks that no listener is told about. */
	if (point == MM_POLICY_ANON_PAGES || point == MM_POLICY_ANON_ORDER)
		mmp_whose_outdate_tasks();
}
