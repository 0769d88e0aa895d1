// SPDX-License-Identifier: GPL-2.0
/*
 * The lock of all changes, and the check that each write to a file makes: a
 * writer holds mmp_lock and calls mmp_may_change().
 */
#include "control.h"

DEFINE_MUTEX(mmp_lock);	/* serialises changes */
static bool latched;

/*
 * Returns true if writes to all files except "reset" are refused, because the
 * lease has expired or the module is being unloaded.
 */
bool mmp_latched(void)
{
	return READ_ONCE(latched);
}

/**
 * mmp_latch - refuse writes to all files except "reset", or accept them again
 * @on: true to refuse; a write in progress may still complete
 */
void mmp_latch(bool on)
{
	WRITE_ONCE(latched, on);
}

/**
 * mmp_may_change - test whether a write is allowed now
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
