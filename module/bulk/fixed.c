// SPDX-License-Identifier: GPL-2.0
/* bulk/fixed: every page_pool refill requests the same number of pages. */
#include "../mmpolicy.h"

enum { PAGES };

static struct mmp_knob knobs[] = {
	/* The upper bound, 128 pages, is the size of a page_pool's cache. */
	[PAGES] = MMP_KNOB(pages, 1, 128, 64, "pages",
			   "number of pages that each refill requests"),
};

static unsigned int bulk_fixed(int nid, const u32 *knob, bool *timed)
{
	return knob[PAGES];
}

struct mmp_policy mmp_policy_bulk_fixed = {
	.name = "fixed",
	.point = MM_POLICY_BULK,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.bulk_pages = bulk_fixed,
};
