// SPDX-License-Identifier: GPL-2.0
/*
 * Ask for 64 kB if 14 or more of the 16 pages before the fault are used,
 * else for one page.
 *
 * clang -O2 -g -Wall -target bpf -mcpu=v3 -c NAME.bpf.c
 * sudo mmpolicy policy load NAME.bpf.o
 */
#include "mmpolicy.bpf.h"

MMP_ORDER(order)
{
	if (mmp_bpf_full(fault, -1, 14))
		return MMP_ANSWER(4, MMP_DENSE_NEIGHBOUR);
	return MMP_ANSWER(0, MMP_NO_NEIGHBOUR);
}

MMP_POLICY(policy, .name = "NAME", .order = (void *)order, .max_order = 4);
