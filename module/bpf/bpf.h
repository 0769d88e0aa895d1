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
#define MMP_BPF_ERROR	96	/* so long is what it reports */
#define MMP_BPF_PAGES	64	/* the most that one question is about */
#define MMP_BPF_IF_NEAR	1	/* flag: ask only where a page nearby may have been used */

/* mmp_fault.site: as enum mm_policy_site, and a write to shared memory. */
#define MMP_BPF_COPY	3

/**
 * struct mmp_told - what all that a program is told begins with
 * @ops: the program, for mmp_bpf_error()
 * @mm: the address space of the question; %NULL: the one of current
 *
 * The verifier takes a struct of plain numbers from a program's own stack for an argument of a
 * question. One with pointers has to be the module's own, so this is also what keeps a program
 * from making one up. And it takes a struct for its first member: questions that all points
 * have are about this one.
 */
struct mmp_told {
	const void *ops;
	const void *mm;
};

/**
 * struct mmp_fault - anon_order: what a program is told of a fault
 * @told: the program
 * @address: of the fault
 * @start: of its VMA
 * @end: of its VMA
 * @knob: values of its knobs in the profile of the process; where two are copied at a time
 * @site: where in the fault it is asked
 * @vmf: the fault, for the questions
 */
struct mmp_fault {
	struct mmp_told told;
	u64 address;
	u64 start;
	u64 end;
	u32 knob[MMP_BPF_KNOBS];
	u32 site;
	const void *vmf;
};

/* thp_gfp: what a program may answer: the kernel's own choice, or as the policies in C. */
enum mmp_bpf_effort {
	MMP_BPF_STOCK,
	MMP_BPF_LIGHT,
	MMP_BPF_ONLY_COMPACT,
	MMP_BPF_ONLY_COMPACT_ANY,
	MMP_BPF_RELAXED,
	MMP_BPF_EFFORTS,
};

/**
 * struct mmp_effort - thp_gfp: what a program is told of a large folio that a fault needs
 * @told: the program
 * @start: of the VMA
 * @end: of the VMA
 * @knob: values of its knobs in the profile of the process
 * @stock: what the kernel does by itself: %MMP_BPF_RELAXED if it compacts and reclaims, else
 *	%MMP_BPF_LIGHT
 * @madvised: was it asked for by MADV_HUGEPAGE?
 */
struct mmp_effort {
	struct mmp_told told;
	u64 start;
	u64 end;
	u32 knob[MMP_BPF_KNOBS];
	u32 stock;
	u32 madvised;
};

/* compact: what a program may answer: 0 for the kernel's own choice, or one of these. */
#define MMP_BPF_COMPACT(answer)	((answer) + 1)

/* When it is asked, or told. */
enum mmp_bpf_when { MMP_BPF_BEFORE, MMP_BPF_FAILED, MMP_BPF_SUCCEEDED };

/**
 * struct mmp_compaction - compact: what a program is told of an attempt to compact a zone
 * @told: the program
 * @pages: of the zone
 * @free: of these
 * @scanned: pages that the attempt has scanned; 0 before it
 * @knob: values of its knobs in the profile of the process
 * @when: before it, or what came of it; what is answered then counts for nothing
 * @zone: a number for the zone, below 65,536
 * @order: of the folio that it is for
 * @movable: is that folio movable? It has other blocks than one that is not.
 * @stock: what the kernel would do by itself, as an answer; before it alone
 */
struct mmp_compaction {
	struct mmp_told told;
	u64 pages;
	u64 free;
	u64 scanned;
	u32 knob[MMP_BPF_KNOBS];
	u32 when;
	u32 zone;
	u32 order;
	u32 movable;
	u32 stock;
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

/*
 * What a program of any point says of itself, behind its function, which has another name in
 * each: the name of the policy, %MMP_BPF_VERSION, of anon_order alone the most that it answers,
 * and that khugepaged makes, and %MMP_BPF_IF_NEAR or 0; its knobs, those that have a name first.
 * @prog is the function; it is the module's own.
 */
#define MMP_BPF_OPS							\
	char name[MMP_BPF_NAME];					\
	u32 version;							\
	u32 max_order;							\
	u32 flags;							\
	struct mmp_bpf_knob knobs[MMP_BPF_KNOBS];			\
	struct bpf_prog *prog

/* A program of whichever point. */
struct mmp_bpf_ops {
	u32 (*ask)(const void *told);

	MMP_BPF_OPS;
};

/* It answers the order, and the reason << 16. */
struct mmp_anon_order_ops {
	u32 (*order)(const struct mmp_fault *fault);

	MMP_BPF_OPS;
};

/* It answers one of enum mmp_bpf_effort. */
struct mmp_thp_gfp_ops {
	u32 (*effort)(const struct mmp_effort *effort);

	MMP_BPF_OPS;
};

/* It answers 0 or MMP_BPF_COMPACT(). */
struct mmp_compact_ops {
	u32 (*compact)(const struct mmp_compaction *compaction);

	MMP_BPF_OPS;
};

/* What a program is told of a fault. Inline, as it is in each fault. */
static __always_inline struct mmp_fault mmp_bpf_fault(const struct vm_fault *vmf,
						      enum mm_policy_site site,
						      const struct mmp_bpf_ops *ops,
						      const u32 *knob)
{
	return (struct mmp_fault){
		.address = vmf->address,
		.start = vmf->vma->vm_start,
		.end = vmf->vma->vm_end,
		.site = mmp_is_copy(site) ? MMP_BPF_COPY : site,
		.knob = { knob[0], knob[1], knob[2], knob[3] },
		.vmf = vmf,
		.told = { ops, vmf->vma->vm_mm },
	};
}

/* What an answer stands for; it is cut where it is more than may be answered. */
static __always_inline struct mmp_decision mmp_bpf_decision(const struct mmp_bpf_ops *ops,
							    u32 answer, bool *cut)
{
	struct mmp_decision d = { .reason = answer >> 16, .order = (u16)answer };

	*cut = unlikely(d.reason >= MMP_REASONS || d.order > ops->max_order);
	if (!*cut)
		return d;
	return (struct mmp_decision){ .order = min(d.order, ops->max_order), .reason = MMP_CAP };
}

/* ask.c */
extern struct mmp_policy mmp_bpf_policies[MMP_BPF_SLOTS];

/* slots.c */

/**
 * struct mmp_bpf_facts - what is to be told of a slot
 * @name: of its policy
 * @point: of its policy
 * @error: what the program has reported
 * @program: its number
 * @clamped: answers that were cut
 */
struct mmp_bpf_facts {
	char name[MMP_BPF_NAME];
	const char *point;
	char error[MMP_BPF_ERROR];
	u32 program;
	u64 clamped;
};

void mmp_bpf_look(unsigned int slot, struct mmp_bpf_facts *facts);
void mmp_bpf_fail(const void *ops, const char *text);
int mmp_bpf_reg(enum mm_policy_point point, const struct mmp_bpf_ops *ops, struct bpf_prog *given);
int mmp_bpf_replace(const struct mmp_bpf_ops *ops, const void *old, struct bpf_prog *given);
void mmp_bpf_unreg(const void *ops);
void mmp_bpf_slots_init(const char *lacks);
void mmp_bpf_slots_exit(void);

/* questions.c */
u32 mmp_bpf_used(const struct mmp_fault *fault, s64 first, u32 pages);
u32 mmp_bpf_mapped(const struct mmp_fault *fault, s64 first, u32 pages);
u32 mmp_bpf_full(const struct mmp_fault *fault, s64 blocks, u32 least);
void mmp_bpf_error(const struct mmp_told *told, const char *text__str);
int mmp_bpf_questions_init(void);

/* surroundings.c */
u64 mmp_bpf_free(const struct mmp_told *told, u32 order);
u64 mmp_bpf_cgroup_pages(const struct mmp_told *told);
u32 mmp_bpf_pressure(const struct mmp_told *told);

/* ops.c */
int mmp_bpf_ops_init(void);
void mmp_bpf_ops_exit(void);

/* files.c */
int mmp_bpf_init(struct kobject *parent);
void mmp_bpf_exit(void);

#endif /* MMPOLICY_BPF_H */
