/* SPDX-License-Identifier: GPL-2.0 */
/* Memory available to a fault, on each node and in cgroups with a limit. */
#ifndef MMPOLICY_AVAILABLE_H
#define MMPOLICY_AVAILABLE_H

#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/percpu.h>

#include "../mmpolicy.h"
#include "limits.h"

/**
 * struct mmp_sample - memory available on a node
 * @share: in 1/1000 of the memory that processes can get there
 * @taken: time of the sample, in jiffies
 */
struct mmp_sample {
	unsigned int share;
	unsigned long taken;
};

/* Returns the share of a sample, or 0 if it is stale at @now. */
static inline unsigned int mmp_sample_share(const struct mmp_sample *sample,
					    unsigned long now)
{
	if (jiffies_to_msecs(now - READ_ONCE(sample->taken)) > MMP_STALE_MS)
		return 0;
	return READ_ONCE(sample->share);
}

/**
 * struct mmp_looked - key of an answer cached by a CPU
 * @whom: see mmp_looked_whom()
 * @enough: share that should be available, in 1/1000
 * @when: jiffies at the time of the answer, which expires after this tick
 */
struct mmp_looked {
	unsigned long whom;
	unsigned int enough;
	unsigned long when;
};

/**
 * struct mmp_spare - memory that a CPU may use before it checks again
 * @by: key of the last check; its share stays available after these pages are
 *	taken
 * @pages: number of pages
 */
struct mmp_spare {
	struct mmp_looked by;
	unsigned long pages;
};

DECLARE_PER_CPU(struct mmp_spare, mmp_spare);

bool mmp_plenty_look(const struct vm_area_struct *vma, unsigned int enough,
		     unsigned long pages);

/* Returns a key of the process and the NUMA memory policy of @vma, for comparison only. */
static inline unsigned long mmp_looked_whom(const struct vm_area_struct *vma)
{
	return (unsigned long)vma->vm_mm ^ (unsigned long)mmp_vma_policy(vma);
}

/*
 * Returns true if the cached answer of this CPU is valid for @vma and @enough.
 * Reads with raw_cpu_read(), as a task that migrates in between does no harm:
 * this_cpu_read() of arm64 turns preemption off and on around each read.
 */
static __always_inline bool mmp_looked_for(struct mmp_looked __percpu *looked,
					   const struct vm_area_struct *vma,
					   unsigned int enough)
{
	return raw_cpu_read(looked->whom) == mmp_looked_whom(vma) &&
	       raw_cpu_read(looked->enough) == enough &&
	       time_before_eq(jiffies, raw_cpu_read(looked->when));
}

/**
 * mmp_plenty - test whether this CPU has cached that memory is ample, and take
 * from it
 * @vma: the requesting VMA
 * @enough: share that should stay available, in 1/1000
 * @pages: requested pages
 *
 * A task that migrates in between may take spare memory of two CPUs, which is
 * little.
 * Context: as for mmp_available().
 * Return: true if memory is ample; if not, mmp_plenty_look() may find it ample.
 */
static inline bool mmp_plenty(const struct vm_area_struct *vma, unsigned int enough,
			      unsigned long pages)
{
	if (unlikely(!mmp_looked_for(&mmp_spare.by, vma, enough) ||
		     raw_cpu_read(mmp_spare.pages) < pages))
		return false;
	this_cpu_sub(mmp_spare.pages, pages);
	return true;
}

unsigned int mmp_available(const struct vm_area_struct *vma, unsigned int enough,
			   unsigned long *pages);
void mmp_available_take(unsigned long pages);
void mmp_available_watch(bool on);

#endif /* MMPOLICY_AVAILABLE_H */
