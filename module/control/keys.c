// SPDX-License-Identifier: GPL-2.0
/* Which hooks ask us: those of the points where some profile has a policy. */
#include <linux/string.h>

#include "control.h"

static bool switched_on[MM_POLICY_POINTS];

/**
 * mmp_key_switch - turn the hook of a point on while it has a policy, or off
 * @point: which
 * @on: on?
 *
 * Context: under mmp_lock; may sleep.
 */
void mmp_key_switch(enum mm_policy_point point, bool on)
{
	void (*switched)(bool on) = mmp_parts->points[point]->switched;

	lockdep_assert_held(&mmp_lock);
	if (switched_on[point] == on)
		return;
	switched_on[point] = on;
	if (on && switched)
		switched(true);
	mm_policy_enable(mmp_parts->ops, point, on);
	if (!on && switched)
		switched(false);
}

/* Has any point a policy other than stock? */
bool mmp_active(void)
{
	return memchr_inv(switched_on, 0, sizeof(switched_on));
}
