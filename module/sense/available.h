/* SPDX-License-Identifier: GPL-2.0 */
/* How much memory is left, of each node and of cgroups with a limit. */
#ifndef MMPOLICY_AVAILABLE_H
#define MMPOLICY_AVAILABLE_H

#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/percpu.h>

#include "../mmpolicy.h"
#include "limits.h"

/**
 * struct mmp_sample - what a look at a node found
 * @share: available, in 1/1000 of what processes can have there
 * @taken: when, in jiffies
 */
struct mmp_sample {
	unsigned int share;
	unsigned long taken;
};

/* What a sample is worth at @now. */
static inline unsigned int mmp_sample_share(const struct mmp_sample *sample,
					    unsigned long now)
{
	if (jiffies_to_msecs(now - READ_ONCE(sample->taken)) > MMP_STALE_MS)
		return 0;
	return READ_ONCE(sample->share);
}

/**
 * struct mmp_looked - for whom a CPU has looked last; others look for themselves
 * @whom: see mmp_looked_whom()
 * @enough: how much there should be, in 1/1000
 * @when: until this tick is over, in jiffies
 */
struct mmp_looked {
	unsigned long whom;
	unsigned int enough;
	unsigned long when;
};

/**
 * struct mmp_spare - memory that a CPU may give away before it looks again
 * @by: for whom; this is left then
 * @pages: how many
 */
struct mmp_spare {
	struct mmp_looked by;
	unsigned long pages;
};

DECLARE_PER_CPU(struct mmp_spare, mmp_spare);

bool mmp_plenty_look(const struct vm_area_struct *vma, unsigned int enough,
		     unsigned long pages);

/* Stands for a process, or for its VMAs that have one memory policy; it is only compared. */
static inline unsigned long mmp_looked_whom(const struct vm_area_struct *vma)
{
	return (unsigned long)vma->vm_mm ^ (unsigned long)mmp_vma_policy(vma);
}

/* Does what this CPU has found hold for @vma and @enough? */
static __always_inline bool mmp_looked_for(struct mmp_looked __percpu *looked,
					   const struct vm_area_struct *vma,
					   unsigned int enough)
{
	return this_cpu_read(looked->whom) == mmp_looked_whom(vma) &&
	       this_cpu_read(looked->enough) == enough &&
	       time_before_eq(jiffies, this_cpu_read(looked->when));
}

/**
 * mmp_plenty - is there so much memory that mmp_available() need not be asked?
 * @vma: who wants it
 * @enough: how much there should be left, in 1/1000
 * @pages: how many are wanted
 *
 * A task that is moved meanwhile may take of the spare memory of two CPUs, which
 * is little.
 * Context: as for mmp_available().
 */
static inline bool mmp_plenty(const struct vm_area_struct *vma, unsigned int enough,
			      unsigned long pages)
{
	if (likely(mmp_looked_for(&mmp_spare.by, vma, enough) &&
		   this_cpu_read(mmp_spare.pages) >= pages)) {
		this_cpu_sub(mmp_spare.pages, pages);
		return true;
	}
	return mmp_plenty_look(vma, enough, pages);
}

unsigned int mmp_available(const struct vm_area_struct *vma, unsigned int enough,
			   unsigned long *pages);
void mmp_available_take(unsigned long pages);
void mmp_available_watch(bool on);

#endif /* MMPOLICY_AVAILABLE_H */
