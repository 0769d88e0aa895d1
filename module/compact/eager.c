// SPDX-License-Identifier: GPL-2.0
/*
 * compact/eager: direct compaction even where it has failed lately.
 *
 * After a long deferral, mm drops its skip hints and scans all pageblocks
 * again. If no attempt waits for the deferral, mm never drops the hints, and
 * compaction would skip the hinted pageblocks for ever. So one deferred attempt
 * in restart_attempts scans all pageblocks. It is chosen at random: zones and
 * modes of compaction alternate, so a counter might always choose one zone and
 * one mode.
 */
#include <linux/random.h>

#include "compact.h"
#include "../mmpolicy.h"

enum { RESTART_ATTEMPTS };

static struct mmp_knob knobs[] = {
	[RESTART_ATTEMPTS] =
		MMP_KNOB(restart_attempts, 1, 10000, 4, "attempts",
			 "one in this many deferred attempts scans all blocks"),
};

static enum mm_policy_compact compact_eager(const struct mmp_attempt *attempt,
					    const u32 *knob)
{
	if (attempt->stock == MM_POLICY_DEFER &&
	    !get_random_u32_below(knob[RESTART_ATTEMPTS]))
		return MM_POLICY_TRY_ALL;
	return MM_POLICY_TRY;
}

struct mmp_policy mmp_policy_compact_eager = {
	.name = "eager",
	.point = MM_POLICY_COMPACT,
	.lacks = MMP_NEEDS_HOOKS("the kernel does not ask about zones whose compaction it defers"),
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.compact_try = compact_eager,
};
