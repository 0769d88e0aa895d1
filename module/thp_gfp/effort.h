/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Efforts of the whole system to allocate memory: direct compaction, direct
 * reclaim, wake-ups of kswapd.
 */
#ifndef MMPOLICY_EFFORT_H
#define MMPOLICY_EFFORT_H

#include "../sense/stall.h"

/*
 * Indexes of the counters of efforts. Reclaim and kswapd have two each: for
 * large folios, then for base pages.
 */
enum {
	MMP_EFFORT_RECLAIM,
	MMP_EFFORT_MEMCG = MMP_EFFORT_RECLAIM + 2,
	MMP_EFFORT_KSWAPD = MMP_EFFORT_MEMCG + 2,
	MMP_EFFORT_MIGRATE = MMP_EFFORT_KSWAPD + 2,
	MMP_EFFORT_FREE,
	MMP_EFFORTS,
};

/* Names of the counters of efforts, for a table of counters from index @first on. */
#define MMP_EFFORT_COUNTERS(first)					\
	[(first) + MMP_EFFORT_RECLAIM] = "reclaim_large", "reclaim_base", \
	[(first) + MMP_EFFORT_MEMCG] = "memcg_reclaim_large",		\
				       "memcg_reclaim_base",		\
	[(first) + MMP_EFFORT_KSWAPD] = "kswapd_large", "kswapd_base",	\
	[(first) + MMP_EFFORT_MIGRATE] = "migrate_scanned",		\
	[(first) + MMP_EFFORT_FREE] = "free_scanned"

void mmp_effort_watch(const struct mmp_point *point, unsigned int first);

/*
 * Start times: when each task began its first effort for the large folio that
 * it is allocating.
 */
extern struct mmp_stamps mmp_effort_stamps;

/**
 * mmp_effort_ends - stop timing the efforts of current, as its attempt to
 * allocate has ended
 *
 * Return: ns since its first effort; 0 without an effort, or if the start is
 * not known.
 */
static inline u64 mmp_effort_ends(void)
{
	return mmp_stall_ends(&mmp_effort_stamps);
}

#endif /* MMPOLICY_EFFORT_H */
