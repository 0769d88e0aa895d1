/* SPDX-License-Identifier: GPL-2.0 */
/* The slots of BPF programs, shared by ask.c and slots.c. */
#ifndef MMPOLICY_BPF_ASK_H
#define MMPOLICY_BPF_ASK_H

#include <linux/percpu.h>

#include "bpf.h"

#define MMP_BPF_NOBODY	"no program is loaded"

/**
 * struct mmp_bpf_slot - holds one BPF program
 * @ops: the program; while it is %NULL, the policy answers stock
 * @owner: the registered struct_ops; under slots_lock
 * @held: reference to the program, kept until no CPU can be running it; %NULL in a free slot.
 *	Under mmp_lock.
 * @name: name of the policy; empty in a free slot
 * @knobs: knobs of the policy
 * @error: error reported by the program
 */
struct mmp_bpf_slot {
	const struct mmp_bpf_ops __rcu *ops;
	const void *owner;
	struct bpf_prog *held;
	char name[MMP_BPF_NAME];
	struct mmp_bpf_knob knobs[MMP_BPF_KNOBS];
	char error[MMP_BPF_ERROR];
};

extern struct mmp_bpf_slot mmp_bpf_slots[MMP_BPF_SLOTS];
DECLARE_PER_CPU(u64, mmp_bpf_clamped[MMP_BPF_SLOTS]);

#endif /* MMPOLICY_BPF_ASK_H */
