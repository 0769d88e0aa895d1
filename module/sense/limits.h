/* SPDX-License-Identifier: GPL-2.0 */
/* Limits of cgroups, and file pages of cgroups near their limit. */
#ifndef MMPOLICY_LIMITS_H
#define MMPOLICY_LIMITS_H

#include <linux/types.h>

/* All memory, in 1/1000. Also the share left in a cgroup without a limit. */
#define MMP_ALL		1000
/* Age in ms beyond which a sample is stale; memory then counts as short. */
#define MMP_STALE_MS	1000

struct mem_cgroup;

/* Returns the share of @pages in @size, in 1/1000. */
static inline unsigned int mmp_share(unsigned long pages, unsigned long size)
{
	return pages < size ? pages * 1000 / size : MMP_ALL;
}

/* A walk over all cgroups takes 1/32 of a CPU at most, and runs ten times a second at most. */
#define MMP_WALK_SHARE	32
#define MMP_WALK_PAUSE	(100 * 1000 * 1000ULL)	/* in ns */

/* Returns the pause in ns after a walk over all cgroups that took @took ns. */
static inline u64 mmp_walk_pause(u64 took)
{
	return took > MMP_WALK_PAUSE / MMP_WALK_SHARE ? took * MMP_WALK_SHARE : MMP_WALK_PAUSE;
}

#ifdef CONFIG_MEMCG
unsigned long mmp_limit_of(const struct mem_cgroup *memcg);
unsigned long mmp_limits_file_pages(struct mem_cgroup *memcg);
void mmp_limits_asked(unsigned int enough);
void mmp_limits_watch(bool on);
#else
static inline void mmp_limits_asked(unsigned int enough) {}
static inline void mmp_limits_watch(bool on) {}
#endif

#endif /* MMPOLICY_LIMITS_H */
