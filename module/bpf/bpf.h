/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Policies that are BPF programs: what a program is told, may ask and may answer, as
 * userspace/bpf/mmpolicy.bpf.h has it for authors. Members, questions and flags may be added;
 * none changes its meaning.
 */
#ifndef MMPOLICY_BPF_H
#define MMPOLICY_BPF_H

#include "../anon_order/anon_order.h"

struct bpf_prog;
struct kobject;

#define MMP_BPF_VERSION	1
#define MMP_BPF_SLOTS	4	/* so many programs can be loaded at a time */
#define MMP_BPF_NAME	16	/* with the end of the text */
#define MMP_BPF_KNOBS	4	/* so many can a policy have */
#define MMP_BPF_PAGES	64	/* the most that one question is about */
#define MMP_BPF_IF_NEAR	1	/* flag: ask only where a page nearby may have been used */

/* mmp_fault.site: as enum mm_policy_site, and a write to shared memory. */
#define MMP_BPF_COPY	3

/**
 * struct mmp_fault - what a program is told of a fault
 * @address: of the fault
 * @start: of its VMA
 * @end: of its VMA
 * @knob: values of its knobs in the profile of the process; where two are copied at a time
 * @site: where in the fault it is asked
 * @vmf: the fault, for the questions
 * @ops: the program, for mmp_bpf_error()
 *
 * It is on the stack of the fault. The verifier takes a struct of plain numbers from a
 * program's own stack for an argument of a question. One with pointers has to be the
 * module's own, so these two members are also what keeps a program from making one up.
 */
struct mmp_fault {
	u64 address;
	u64 start;
	u64 end;
	u32 knob[MMP_BPF_KNOBS];
	u32 site;
	const void *vmf;
	const void *ops;
};

/**
 * struct mmp_bpf_knob - what a program says of a knob
 * @name: as in sysfs; empty if there is none
 * @unit: what the number counts
 * @meaning: what it is for, in a line
 * @min: smallest value accepted
 * @max: largest value accepted
 * @def: value at load and after a reset
 */
struct mmp_bpf_knob {
	char name[24];
	char unit[24];
	char meaning[80];
	u32 min;
	u32 max;
	u32 def;
};

/**
 * struct mmp_anon_order_ops - a program that is a policy of anon_order
 * @order: the answer to a fault: its order, and the reason << 16
 * @name: of the policy
 * @version: %MMP_BPF_VERSION
 * @max_order: the most that it answers, and that khugepaged makes
 * @flags: %MMP_BPF_IF_NEAR or 0
 * @knobs: those that have a name come first
 * @prog: what @order is; the module's own
 */
struct mmp_anon_order_ops {
	u32 (*order)(const struct mmp_fault *fault);
	char name[MMP_BPF_NAME];
	u32 version;
	u32 max_order;
	u32 flags;
	struct mmp_bpf_knob knobs[MMP_BPF_KNOBS];
	struct bpf_prog *prog;
};

/* What a program is told of a fault. Inline, as it is in each fault. */
static __always_inline struct mmp_fault mmp_bpf_fault(const struct vm_fault *vmf,
						      enum mm_policy_site site,
						      const struct mmp_anon_order_ops *ops,
						      const u32 *knob)
{
	return (struct mmp_fault){
		.address = vmf->address,
		.start = vmf->vma->vm_start,
		.end = vmf->vma->vm_end,
		.site = mmp_is_copy(site) ? MMP_BPF_COPY : site,
		.knob = { knob[0], knob[1], knob[2], knob[3] },
		.vmf = vmf,
		.ops = ops,
	};
}

/* What an answer stands for; it is cut where it is more than may be answered. */
static __always_inline struct mmp_decision mmp_bpf_decision(const struct mmp_anon_order_ops *ops,
							    u32 answer, bool *cut)
{
	struct mmp_decision d = { .reason = answer >> 16, .order = (u16)answer };

	*cut = unlikely(d.reason >= MMP_REASONS || d.order > ops->max_order);
	if (!*cut)
		return d;
	return (struct mmp_decision){ .order = min(d.order, ops->max_order), .reason = MMP_CAP };
}

/* slots.c */
extern struct mmp_policy mmp_bpf_policies[MMP_BPF_SLOTS];

/**
 * struct mmp_bpf_facts - what is to be told of a slot
 * @name: of its policy
 * @error: what the program has reported
 * @program: its number
 * @clamped: answers that were cut
 */
struct mmp_bpf_facts {
	char name[MMP_BPF_NAME];
	char error[96];
	u32 program;
	u64 clamped;
};

void mmp_bpf_look(unsigned int slot, struct mmp_bpf_facts *facts);
void mmp_bpf_fail(const void *ops, const char *text);
int mmp_bpf_reg(struct mmp_anon_order_ops *ops, struct bpf_prog *(*take)(const void *ops));
int mmp_bpf_replace(struct mmp_anon_order_ops *ops, const void *old,
		    struct bpf_prog *(*take)(const void *ops));
void mmp_bpf_unreg(const void *ops);
void mmp_bpf_slots_init(const char *lacks);
void mmp_bpf_slots_exit(void);

/* questions.c */
u32 mmp_bpf_used(const struct mmp_fault *fault, s64 first, u32 pages);
u32 mmp_bpf_mapped(const struct mmp_fault *fault, s64 first, u32 pages);
u32 mmp_bpf_full(const struct mmp_fault *fault, s64 blocks, u32 least);
void mmp_bpf_error(const struct mmp_fault *fault, const char *text__str);
int mmp_bpf_questions_init(void);

/* surroundings.c */
u64 mmp_bpf_free(const struct mmp_fault *fault, u32 order);
u64 mmp_bpf_cgroup_pages(const struct mmp_fault *fault);
u32 mmp_bpf_pressure(const struct mmp_fault *fault);

/* ops.c */
int mmp_bpf_ops_init(void);
void mmp_bpf_ops_exit(void);

/* files.c */
int mmp_bpf_init(struct kobject *parent);
void mmp_bpf_exit(void);

#endif /* MMPOLICY_BPF_H */
