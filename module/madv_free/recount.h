/* SPDX-License-Identifier: GPL-2.0 */
/* An address space tracked by tracked.c, and the progress of its counts. */
#ifndef MMPOLICY_RECOUNT_H
#define MMPOLICY_RECOUNT_H

#include <linux/list.h>
#include <linux/rcupdate.h>
#include <linux/spinlock.h>

#include "lazyfree.h"

/**
 * struct tracked - a process whose lazily freed pages are counted
 * @node: in the hash table of all tracked processes
 * @listed: in the list of uncounted processes, or in that of counted ones
 * @rcu: frees it after the last reader
 * @lock: protects @lazy
 * @known: counted once, so pages lazily freed before tracking began are
 *	included
 * @stale: the kernel has lazily freed pages that are not counted
 * @counted_to: address up to which the first count has come
 * @recounted_to: area up to which the recount has come, see tracked.c
 * @lazy: counts of lazily freed pages
 *
 * Created by the first madvise() call, then moved and removed by the worker.
 * Holds a reference to mm_struct, but not to its memory.
 */
struct tracked {
	struct hlist_node node;
	struct list_head listed;
	struct rcu_head rcu;
	spinlock_t lock;	/* protects lazy */
	bool known;
	bool stale;
	unsigned long counted_to;
	unsigned int recounted_to;
	struct mmp_lazy lazy;
};

/* recount.c */
void mmp_recount_new(struct tracked *t, unsigned int *tables);
unsigned int mmp_recount(struct tracked *t, unsigned int index, unsigned int *tables);
void mmp_recount_stop(bool stop);

#endif /* MMPOLICY_RECOUNT_H */
