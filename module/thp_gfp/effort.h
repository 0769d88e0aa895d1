/* SPDX-License-Identifier: GPL-2.0 */
/* What is done in the whole system to make large folios, or base pages. */
#ifndef MMPOLICY_EFFORT_H
#define MMPOLICY_EFFORT_H

#include "../sense/stall.h"

/* Reclaim and kswapd: for large folios, then for base pages. */
enum {
	MMP_EFFORT_RECLAIM,
	MMP_EFFORT_MEMCG = MMP_EFFORT_RECLAIM + 2,
	MMP_EFFORT_KSWAPD = MMP_EFFORT_MEMCG + 2,
	MMP_EFFORT_MIGRATE = MMP_EFFORT_KSWAPD + 2,
	MMP_EFFORT_FREE,
	MMP_EFFORTS,
};

/* Their names, from the index @first of a table of counters on. */
#define MMP_EFFORT_COUNTERS(first)					\
	[(first) + MMP_EFFORT_RECLAIM] = "reclaim_large", "reclaim_base", \
	[(first) + MMP_EFFORT_MEMCG] = "memcg_reclaim_large",		\
				       "memcg_reclaim_base",		\
	[(first) + MMP_EFFORT_KSWAPD] = "kswapd_large", "kswapd_base",	\
	[(first) + MMP_EFFORT_MIGRATE] = "migrate_scanned",		\
	[(first) + MMP_EFFORT_FREE] = "free_scanned"

void mmp_effort_watch(const struct mmp_point *point, unsigned int first);

/* When attempts made their first effort. */
extern struct mmp_stamps mmp_effort_stamps;

/**
 * mmp_effort_ends - current has made its attempt
 *
 * Return: how long it took in ns from its first effort on, 0 if it made none or
 * that is not known.
 */
static inline u64 mmp_effort_ends(void)
{
	return mmp_stall_ends(&mmp_effort_stamps);
}

#endif /* MMPOLICY_EFFORT_H */
