// SPDX-License-Identifier: GPL-2.0
/* Who is asked at each point. */
#include <linux/rcupdate.h>

#include "direct.h"

const struct mm_policy_ops __rcu *mmp_asked[MM_POLICY_POINTS];

/**
 * mm_policy_enable - ask @ops at a point, or stop asking
 * @ops: who
 * @point: which
 * @on: if false, callbacks may still run for one RCU grace period
 */
void mm_policy_enable(const struct mm_policy_ops *ops, enum mm_policy_point point, bool on)
{
	if (point < MM_POLICY_POINTS)
		rcu_assign_pointer(mmp_asked[point], on ? ops : NULL);
}
