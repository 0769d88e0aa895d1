// SPDX-License-Identifier: GPL-2.0
/* How much memory is said to be left, as module/sense/available.h has it. */
#include "check.h"
#include "sense/available.h"

TEST(available_is_a_share)
{
	EXPECT(mmp_share(0, 1000), ==, 0);
	EXPECT(mmp_share(51, 1000), ==, 51);
	EXPECT(mmp_share(1UL << 30, 1UL << 31), ==, 500);
	EXPECT(mmp_share(2000, 1000), ==, MMP_ALL);
	EXPECT(mmp_share(0, 0), ==, MMP_ALL);
}

/* Whoever looks may be kept from it, when memory is short of all times. */
TEST(available_says_nothing_when_stale)
{
	const struct mmp_sample sample = { .share = 700, .taken = -100UL };
	const unsigned long stale = MMP_STALE_MS / 4;	/* in jiffies */

	EXPECT(mmp_sample_share(&sample, sample.taken), ==, 700);
	EXPECT(mmp_sample_share(&sample, sample.taken + stale), ==, 700);
	EXPECT(mmp_sample_share(&sample, sample.taken + stale + 1), ==, 0);
	EXPECT(mmp_sample_share(&sample, sample.taken + 1000 * stale), ==, 0);
}
