/* SPDX-License-Identifier: GPL-2.0 */
/* How much memory is left, of each node and of cgroups with a limit. */
#ifndef MMPOLICY_AVAILABLE_H
#define MMPOLICY_AVAILABLE_H

#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/percpu.h>

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

/**
 * struct mmp_spare - memory that a CPU may give away before it looks again
 * @mm: to whom; others look for themselves
 * @enough: so that this is left, in 1/1000
 * @when: until this tick is over, in jiffies
 * @pages: how many
 */
struct mmp_spare {
	const struct mm_struct *mm;
	unsigned int enough;
	unsigned long when;
	unsigned long pages;
};

DECLARE_PER_CPU(struct mmp_spare, mmp_spare);

bool mmp_plenty_look(const struct mm_struct *mm, unsigned int enough,
		     unsigned long pages);

/**
 * mmp_plenty - is there so much memory that mmp_available() need not be asked?
 * @mm: the address space
 * @enough: how much there should be left, in 1/1000
 * @pages: how many are wanted
 *
 * A task that is moved meanwhile may take of the spare memory of two CPUs, which
 * is little.
 * Context: as for mmp_available().
 */
static inline bool mmp_plenty(const struct mm_struct *mm, unsigned int enough,
			      unsigned long pages)
{
	if (likely(this_cpu_read(mmp_spare.mm) == mm &&
		   this_cpu_read(mmp_spare.pages) >= pages &&
		   time_before_eq(jiffies, this_cpu_read(mmp_spare.when)) &&
		   this_cpu_read(mmp_spare.enough) == enough)) {
		this_cpu_sub(mmp_spare.pages, pages);
		return true;
	}
	return mmp_plenty_look(mm, enough, pages);
}

unsigned int mmp_available(const struct mm_struct *mm, unsigned int enough,
			   unsigned long *pages);
void mmp_available_watch(bool on);

#endif /* MMPOLICY_AVAILABLE_H */
