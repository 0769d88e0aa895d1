/* SPDX-License-Identifier: GPL-2.0 */
/*
 * An address space whose lazily freed pages tracked.c counts, and the progress
 * of its counts.
 */
#ifndef MMPOLICY_RECOUNT_H
#define MMPOLICY_RECOUNT_H

#include <linux/list.h>
#include <linux/rcupdate.h>
#include <linux/spinlock.h>

#include "lazyfree.h"

/**
 * struct tracked - a process whose lazily freed pages are counted
 * @node: link in the hash table of all tracked processes
 * @listed: link in the list of uncounted processes, or in that of counted ones
 * @rcu: frees the structure after its last reader
 * @lock: protects @lazy
 * @known: counted once, so pages lazily freed before tracking began are
 *	included
 * @stale: the kernel has lazily freed pages that are not counted
 * @counted_to: address up to which the first count has come
 * @recounted_to: area up to which the recount has come, see tracked.c
 * @lazy: counts of lazily freed pages
 *
 * The first madvise() call of a process creates the structure; the worker then
 * moves and removes it. It holds a reference to mm_struct, but not to the
 * memory that mm_struct describes.
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
