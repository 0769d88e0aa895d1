/* SPDX-License-Identifier: GPL-2.0 */
/* What the policies of the point compact share. */
#ifndef MMPOLICY_COMPACT_H
#define MMPOLICY_COMPACT_H

#include <linux/mmzone.h>

/**
 * mmp_end_deferral - as if compaction of a zone had been deferred long enough
 * @zone: the zone
 *
 * After the longest deferral, mm looks at all blocks again, also at those that
 * were of no use. It has no lock for these numbers, so we need none either.
 */
static inline void mmp_end_deferral(struct zone *zone)
{
	WRITE_ONCE(zone->compact_considered,
		   1U << READ_ONCE(zone->compact_defer_shift));
}

/* budget.c: what it has learned, from nothing to nothing. May sleep. */
void mmp_compact_budget_begin(void);
void mmp_compact_budget_end(void);

#endif /* MMPOLICY_COMPACT_H */
