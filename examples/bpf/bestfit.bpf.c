// SPDX-License-Identifier: GPL-2.0
/*
 * Requests the largest size that fits into the area, and of which more than
 * "spare" blocks are free.
 */
#include "mmpolicy.bpf.h"

enum { MAX_ORDER, SPARE };

MMP_ORDER(order)
{
	const __u64 room = fault->end - fault->start;

	for (__u32 order = 9; order > 1; order--)
		if (order <= fault->knob[MAX_ORDER] && room >= 4096ULL << order &&
		    mmp_bpf_free(fault, order) > fault->knob[SPARE])
			return MMP_ANSWER(order, MMP_CAP);
	return MMP_ANSWER(0, MMP_CAP);
}

MMP_POLICY(bestfit, .order = (void *)order, .max_order = 9, .knobs = {
	[MAX_ORDER] = { "max_order", "order: 2^n pages", "the largest order", 0, 9, 9 },
	[SPARE] = { "spare", "blocks", "so many of a size are left alone", 0, 1 << 20, 16 },
});
