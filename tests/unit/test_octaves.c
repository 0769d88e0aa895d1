// SPDX-License-Identifier: GPL-2.0
/* Histogram of times: each bucket counts the times that its name says. */
#include <linux/mm_types.h>

#include "check.h"
#include "sense/octaves.h"

/* Returns the smallest time of a bucket, as docs/sysfs-abi.txt defines it. */
static u64 least(unsigned int bucket)
{
	u64 octave = MMP_FIRST_OCTAVE + bucket / 8;

	return (8 + (u64)bucket % 8) << (octave - 3);
}

TEST(every_bucket_begins_where_the_one_before_ends)
{
	unsigned int i;

	EXPECT(MMP_BUCKETS, ==, 200);
	for (i = 0; i < MMP_BUCKETS; i++) {
		at("bucket %u", i);
		EXPECT(mmp_bucket(least(i)), ==, i);
		EXPECT(mmp_bucket(least(i + 1) - 1), ==, i);
	}
}

TEST(the_outer_buckets_have_the_rest)
{
	EXPECT(mmp_bucket(0), ==, 0);
	EXPECT(mmp_bucket(127), ==, 0);
	EXPECT(mmp_bucket(1ULL << 32), ==, MMP_BUCKETS - 1);
	EXPECT(mmp_bucket(~0ULL), ==, MMP_BUCKETS - 1);
}
