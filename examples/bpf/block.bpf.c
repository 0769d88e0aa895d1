// SPDX-License-Identifier: GPL-2.0
/*
 * Requests 64 kB if the 64 kB before or after the fault were used: at least 14
 * of their 16 pages. Else requests a page, because memory with gaps is cheapest
 * in single pages. Where 64 kB do not fit around the fault, the kernel takes
 * the largest size that does.
 *
 * With MMP_IF_NEAR, most faults of sparse access do not call the program.
 */
#include "mmpolicy.bpf.h"

#define LEAST	14

MMP_ORDER(order)
{
	if (!mmp_bpf_full(fault, -1, LEAST) && !mmp_bpf_full(fault, 1, LEAST))
		return MMP_ANSWER(0, MMP_NO_NEIGHBOUR);
	return MMP_ANSWER(4, MMP_DENSE_NEIGHBOUR);
}

MMP_POLICY(block, .order = (void *)order, .max_order = 4, .flags = MMP_IF_NEAR);
