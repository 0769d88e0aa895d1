/* SPDX-License-Identifier: GPL-2.0 */
/* An address space that tracked.c knows, and how it is counted. */
#ifndef MMPOLICY_RECOUNT_H
#define MMPOLICY_RECOUNT_H

#include <linux/list.h>
#include <linux/rcupdate.h>
#include <linux/spinlock.h>

#include "lazyfree.h"

/**
 * struct tracked - an address space that we know
 * @node: in the table of all
 * @listed: among those that have not been counted, or those that have
 * @rcu: frees it after the last reader
 * @lock: held for what is done with @lazy
 * @known: has been counted, so we know what was lazily freed before
 * @stale: others than us have freed lazily since
 * @counted_to: up to which address it was counted
 * @recounted_to: before which area it was counted anew, see tracked.c
 * @lazy: what is lazily freed
 *
 * Made by the first call, then moved and removed by the keeper; mm_struct is kept,
 * its memory not.
 */
struct tracked {
	struct hlist_node node;
	struct list_head listed;
	struct rcu_head rcu;
	spinlock_t lock;	/* of lazy */
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
