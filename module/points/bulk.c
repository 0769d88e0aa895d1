// SPDX-License-Identifier: GPL-2.0
/* The point bulk: pages per bulk allocation. */
#include "../mmpolicy.h"

struct mmp_point mmp_point_bulk = {
	.name = "bulk",
};

/* See &mm_policy_ops.bulk_pages. */
unsigned int mmp_bulk_pages(int nid, unsigned int def, unsigned int max)
{
	return def;
}

/* See &mm_policy_ops.bulk_done. */
void mmp_bulk_done(int nid, unsigned int want, unsigned int got)
{
}
