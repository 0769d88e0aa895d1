// SPDX-License-Identifier: GPL-2.0
/* The share of available memory, as module/sense/available.h defines it. */
#include <linux/jiffies.h>
#include <linux/percpu.h>

#include "check.h"
#include "sense/available.h"
#include "sense/limits.h"

TEST(available_is_a_share)
{
	EXPECT(mmp_share(0, 1000), ==, 0);
	EXPECT(mmp_share(51, 1000), ==, 51);
	EXPECT(mmp_share(1UL << 30, 1UL << 31), ==, 500);
	EXPECT(mmp_share(2000, 1000), ==, 1000);
	EXPECT(mmp_share(0, 0), ==, 1000);
}

/*
 * A stale sample counts as short memory, because the sampler may be delayed
 * just when memory is short.
 */
TEST(available_says_nothing_when_stale)
{
	const struct mmp_sample sample = { .share = 700, .taken = -100UL };
	const unsigned long stale = 1000 / 4;	/* a second, in jiffies */

	EXPECT(mmp_sample_share(&sample, sample.taken), ==, 700);
	EXPECT(mmp_sample_share(&sample, sample.taken + stale), ==, 700);
	EXPECT(mmp_sample_share(&sample, sample.taken + stale + 1), ==, 0);
	EXPECT(mmp_sample_share(&sample, sample.taken + 1000 * stale), ==, 0);
}

DEFINE_PER_CPU(struct mmp_spare, mmp_spare);

/*
 * Spare memory that a CPU has cached is valid for one process, one tick, one
 * threshold, and a number of pages.
 */
TEST(plenty_is_not_looked_for_again)
{
	const struct vm_area_struct vma = { .vm_mm = (void *)0x1000 };
	const struct vm_area_struct other = { .vm_mm = (void *)0x2000 };

	mmp_spare = (struct mmp_spare){
		.by = { .whom = mmp_looked_whom(&vma), .enough = 50, .when = jiffies },
		.pages = 40,
	};
	EXPECT(mmp_plenty(&vma, 50, 16), ==, true);
	EXPECT(mmp_plenty(&vma, 50, 16), ==, true);
	EXPECT(mmp_spare.pages, ==, 8);
	EXPECT(mmp_plenty(&vma, 50, 9), ==, false);
	EXPECT(mmp_plenty(&other, 50, 1), ==, false);
	EXPECT(mmp_plenty(&vma, 51, 1), ==, false);
	EXPECT(mmp_plenty(&vma, 50, 8), ==, true);
	mmp_spare.pages = 8;
	jiffies++;
	EXPECT(mmp_plenty(&vma, 50, 1), ==, false);
}

/* A walk over all cgroups takes at most 1/32 of a CPU, however long it is. */
TEST(limits_walk_share)
{
	static const u64 took[] = { 0, 1000, 3124999, 3125000, 3125001, 16000000, 100000000,
				    1000000000, 60000000000ULL };
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(took); i++) {
		at("%llu ns", (unsigned long long)took[i]);
		EXPECT(mmp_walk_pause(took[i]), >=, 100000000);
		EXPECT(took[i] * 32, <=, mmp_walk_pause(took[i]));
	}
	EXPECT(mmp_walk_pause(1000000000), ==, 32000000000ULL);
	EXPECT(mmp_walk_pause(1000), ==, 100000000);
}
