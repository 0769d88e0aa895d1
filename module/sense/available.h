/* SPDX-License-Identifier: GPL-2.0 */
/* How much memory is left, of each node and of cgroups with a limit. */
#ifndef MMPOLICY_AVAILABLE_H
#define MMPOLICY_AVAILABLE_H

#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/mm.h>

/* Of something that has no memory, or no limit, there is enough. */
#define MMP_ALL		1000
/* A node that was not looked at for so long is taken to be short. */
#define MMP_STALE_MS	1000

/**
 * struct mmp_sample - what a look at a node found
 * @share: available, in 1/1000 of what processes can have there
 * @taken: when, in jiffies
 */
struct mmp_sample {
	unsigned int share;
	unsigned long taken;
};

/* In 1/1000 of @size. */
static inline unsigned int mmp_share(unsigned long pages, unsigned long size)
{
	return pages < size ? pages * 1000 / size : MMP_ALL;
}

/* What a sample is worth at @now. */
static inline unsigned int mmp_sample_share(const struct mmp_sample *sample,
					    unsigned long now)
{
	if (jiffies_to_msecs(now - READ_ONCE(sample->taken)) > MMP_STALE_MS)
		return 0;
	return READ_ONCE(sample->share);
}

unsigned int mmp_available(const struct mm_struct *mm, unsigned int enough,
			   unsigned long *pages);
void mmp_available_watch(bool on);

#endif /* MMPOLICY_AVAILABLE_H */
