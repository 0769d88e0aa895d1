/* SPDX-License-Identifier: GPL-2.0 */
/* Access patterns, each in a VMA of its own. */
#ifndef WALKS_H
#define WALKS_H

#include "sim.h"

#define AREA	16384UL			/* pages: 64 MiB, of many page tables */
#define START	(3 * SIM_TABLE)		/* page at which the VMAs of most walks start */

typedef void walk(struct sim *sim);

walk forward, backward, streams, uneven_streams, unaligned;
walk every_32k, every_64k, every_128k, every_2m, random_quarter;
walk dense_then_sparse, sparse_then_dense, sparse_filled_up;
walk heap, stack, stack_again;
walk swap_in_forward, swap_in_backward, swap_in_sparse;
walk after_fork, across_pmd_pages, both_ends;

unsigned int pick(unsigned int n);	/* pseudo-random, 0..n-1; equal in each run */

#endif /* WALKS_H */
