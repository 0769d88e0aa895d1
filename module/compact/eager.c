// SPDX-License-Identifier: GPL-2.0
/*
 * compact/eager: direct compaction even where it has failed lately.
 *
 * When mm has deferred compaction for long, it forgets which blocks were of no
 * use and looks at all of them again. Attempts that do not wait would never come
 * to that point: they would pass over the same blocks for ever. So now and then
 * one of them looks at all: at random, as zones and modes of compaction take
 * turns, and a count would pick the same one each time.
 */
#include <linux/random.h>

#include "compact.h"
#include "../mmpolicy.h"

enum { RESTART_ATTEMPTS };

static struct mmp_knob knobs[] = {
	[RESTART_ATTEMPTS] =
		MMP_KNOB(restart_attempts, 1, 10000, 4, "attempts",
			 "one in so many deferred ones looks at all blocks"),
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
	.lacks = MMP_NEEDS_HOOKS("the kernel does not ask about zones that it has put off"),
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.compact_try = compact_eager,
};
