// SPDX-License-Identifier: GPL-2.0
/*
 * Learns for each process whether it fills the memory that it touches. The
 * first 64 kB block of each 16 blocks always gets single pages. Whether the
 * process has filled that block decides the size in the other 15.
 */
#include "mmpolicy.bpf.h"

#define LEAST	14	/* a block of 16 pages with so many used ones is filled */
#define MOST	8	/* limits the lead, so that a change shows soon */
#define GAPS	4	/* filled blocks that make up for one block with gaps */

enum { LEAD };

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, __s64);
} leads SEC(".maps");

MMP_ORDER(order)
{
	const __s64 back = fault->address >> 16 & 15;	/* blocks back to the first one */
	__u32 process = bpf_get_current_pid_tgid() >> 32;
	__s64 *lead = bpf_map_lookup_elem(&leads, &process), none = 0;

	if (!lead)
		bpf_map_update_elem(&leads, &process, &none, 0);
	if (!lead || !back)
		return MMP_ANSWER(0, MMP_NO_NEIGHBOUR);
	if (mmp_bpf_full(fault, -back, LEAST))
		*lead += *lead < MOST;
	else if (mmp_bpf_mapped(fault, -16 * back - mmp_into(fault, 4), 16))
		*lead = *lead > 0 ? *lead - GAPS : 0;
	if (*lead < fault->knob[LEAD])
		return MMP_ANSWER(0, MMP_NO_NEIGHBOUR);
	return MMP_ANSWER(4, MMP_DENSE_NEIGHBOUR);
}

MMP_POLICY(learn, .order = (void *)order, .max_order = 4, .knobs = {
	[LEAD] = { "lead", "blocks", "so many more were filled than had gaps", 1, MOST, 2 },
});
