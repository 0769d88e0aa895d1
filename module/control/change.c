// SPDX-License-Identifier: GPL-2.0
/* What every write goes through: is it allowed now, one at a time. */
#include "control.h"

DEFINE_MUTEX(mmp_lock);	/* serialises changes */
static bool latched;

/* Are writes refused, because the lease has expired or the module goes? */
bool mmp_latched(void)
{
	return READ_ONCE(latched);
}

/**
 * mmp_latch - refuse all writes but the acknowledgment, or none any more
 * @on: refuse? A write that is under way may still be carried out.
 */
void mmp_latch(bool on)
{
	WRITE_ONCE(latched, on);
}

/**
 * mmp_may_change - is a write allowed now?
 * @profile: what it is about, or %NULL for anything else
 *
 * Context: under mmp_lock.
 * Return: 0; -EBUSY after the lease has expired; -ENODEV for a profile that is
 *	deleted.
 */
int mmp_may_change(const struct mmp_profile *profile)
{
	lockdep_assert_held(&mmp_lock);
	if (mmp_latched())
		return -EBUSY;
	return profile && profile->gone ? -ENODEV : 0;
}
