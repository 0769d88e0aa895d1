// SPDX-License-Identifier: GPL-2.0
/* What every write goes through: is it a number, is it allowed now, one at a time. */
#include <linux/kstrtox.h>

#include "control.h"

#define LONGEST	64	/* kernfs cuts what is longer than a page */

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

/**
 * mmp_parse - read a number
 * @buf: one newline may follow
 * @count: length of what was written
 * @min: smallest value accepted
 * @max: largest value accepted
 * @value: where to
 *
 * Return: 0, -EINVAL or -ERANGE.
 */
int mmp_parse(const char *buf, size_t count, u64 min, u64 max, u64 *value)
{
	s64 negative;
	int err;

	if (count > LONGEST)
		return -EINVAL;
	if (*buf == '-')
		return kstrtos64(buf, 10, &negative) ?: -ERANGE;
	err = kstrtou64(buf, 10, value);
	if (err)
		return err;
	return *value < min || *value > max ? -ERANGE : 0;
}
