// SPDX-License-Identifier: GPL-2.0
/* Every write passes here: mmp_lock serialises writes, and mmp_may_change() permits them. */
#include "control.h"

DEFINE_MUTEX(mmp_lock);	/* serialises changes */
static bool latched;

/* Are writes refused, because the lease has expired or the module is being unloaded? */
bool mmp_latched(void)
{
	return READ_ONCE(latched);
}

/**
 * mmp_latch - refuse all writes but the acknowledgment, or accept them again
 * @on: refuse? A write under way may still complete.
 */
void mmp_latch(bool on)
{
	WRITE_ONCE(latched, on);
}

/**
 * mmp_may_change - is a write allowed now?
 * @profile: the profile that the write changes, or %NULL for other writes
 *
 * Context: under mmp_lock.
 * Return: 0; -EBUSY after the lease has expired; -ENODEV for a deleted profile.
 */
int mmp_may_change(const struct mmp_profile *profile)
{
	lockdep_assert_held(&mmp_lock);
	if (mmp_latched())
		return -EBUSY;
	return profile && profile->gone ? -ENODEV : 0;
}
