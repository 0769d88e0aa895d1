/* SPDX-License-Identifier: GPL-2.0 */
/* Limits of cgroups, and the file pages of those near their limit. */
#ifndef MMPOLICY_LIMITS_H
#define MMPOLICY_LIMITS_H

#include <linux/types.h>

/* A share of 1000/1000: what a cgroup without a limit has left. */
#define MMP_ALL		1000
/* A cgroup that was not looked at for so long is taken to be short of memory. */
#define MMP_STALE_MS	1000

struct mem_cgroup;

/* In 1/1000 of @size. */
static inline unsigned int mmp_share(unsigned long pages, unsigned long size)
{
	return pages < size ? pages * 1000 / size : MMP_ALL;
}

/* A walk over all cgroups may take this part of a CPU, and comes ten times a second at most. */
#define MMP_WALK_SHARE	32
#define MMP_WALK_PAUSE	(100 * 1000 * 1000ULL)	/* in ns */

/* How long to wait after a walk that took so long, in ns. */
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
