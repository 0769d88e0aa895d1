/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Policies that are BPF programs: their context structs, kfuncs and answers. Authors of
 * programs use userspace/bpf/mmpolicy.bpf.h. Later versions may add members, kfuncs and flags,
 * but never change the meaning of one.
 */
#ifndef MMPOLICY_BPF_H
#define MMPOLICY_BPF_H

#include "../anon_order/anon_order.h"

struct bpf_prog;
struct kobject;

#define MMP_BPF_VERSION	1
#define MMP_BPF_SLOTS	4	/* programs that can be loaded at a time */
#define MMP_BPF_NAME	16	/* bytes of a policy's name, with the terminating NUL */
#define MMP_BPF_KNOBS	4	/* knobs of one policy, at most */
#define MMP_BPF_ERROR	96	/* bytes of the text of an error that a program reports */
#define MMP_BPF_PAGES	64	/* pages that one kfunc call may examine at most */
/*
 * flag: call the program only if a page near the fault may have been used; otherwise request order
 * 0
 */
#define MMP_BPF_IF_NEAR	1

/*
 * Value of mmp_fault.site for a copy-on-write fault. For all other faults, the value is from enum
 * mm_policy_site.
 */
#define MMP_BPF_COPY	3

/**
 * struct mmp_told - first member of the context struct of each point
 * @ops: the program, for mmp_bpf_error()
 * @mm: the address space that the program decides about; %NULL: that of the
 *	current task
 *
 * The verifier accepts a struct of plain numbers on the program's own stack as
 * an argument of a kfunc. It does not accept a struct with pointers unless the
 * module passed it, so the pointers here keep a program from forging one. The
 * verifier lets a pointer to a struct stand for its first member, so kfuncs
 * that serve all points take struct mmp_told.
 */
struct mmp_told {
	const void *ops;
	const void *mm;
};

/**
 * struct mmp_fault - anon_order: context of a page fault
 * @told: the program
 * @address: address of the fault
 * @start: start of its VMA
 * @end: end of its VMA
 * @knob: values of the policy's knobs in the profile of the process; aligned, so that the compiler
 *	copies two at a time
 * @site: place in the fault path that calls the program: enum mm_policy_site, or %MMP_BPF_COPY
 * @vmf: the fault, for the kfuncs
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

/*
 * Answers of a program at the point thp_gfp: the kernel's own choice, or that
 * of a policy in C.
 */
enum mmp_bpf_effort {
	MMP_BPF_STOCK,
	MMP_BPF_LIGHT,
	MMP_BPF_ONLY_COMPACT,
	MMP_BPF_ONLY_COMPACT_ANY,
	MMP_BPF_RELAXED,
	MMP_BPF_EFFORTS,
};

/**
 * struct mmp_effort - thp_gfp: context of the allocation of a large folio in a fault
 * @told: the program
 * @start: start of the VMA
 * @end: end of the VMA
 * @knob: values of the policy's knobs in the profile of the process
 * @stock: the kernel's own choice: %MMP_BPF_RELAXED if it compacts and reclaims, else
 *	%MMP_BPF_LIGHT
 * @madvised: 1 if the VMA has MADV_HUGEPAGE, else 0
 */
struct mmp_effort {
	struct mmp_told told;
	u64 start;
	u64 end;
	u32 knob[MMP_BPF_KNOBS];
	u32 stock;
	u32 madvised;
};

/*
 * Encodes an enum mm_policy_compact for the return value of a compact program,
 * where 0 means the kernel's own choice.
 */
#define MMP_BPF_COMPACT(answer)	((answer) + 1)

/*
 * Tells whether a program is called before an attempt to compact a zone, or after it, with the
 * result.
 */
enum mmp_bpf_when { MMP_BPF_BEFORE, MMP_BPF_FAILED, MMP_BPF_SUCCEEDED };

/**
 * struct mmp_compaction - compact: context of an attempt to compact a zone
 * @told: the program
 * @pages: managed pages of the zone
 * @free: free pages of the zone
 * @scanned: pages that the attempt has scanned; 0 before it
 * @knob: values of the policy's knobs in the profile of the process
 * @when: enum mmp_bpf_when; after the attempt, the answer of the program is ignored
 * @zone: number of the zone, below 65,536
 * @order: requested order
 * @movable: 1 if the requested folio is movable, else 0; movable and unmovable folios use different
 *	pageblocks
 * @stock: the kernel's own choice, as an answer; set before the attempt only
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
 * struct mmp_bpf_knob - knob declared by a program
 * @name: name in sysfs; empty if the program declares no knob here
 * @unit: unit of the value
 * @meaning: purpose of the knob, in one line
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
 * Members that the struct_ops of all points share. They follow the function of the program,
 * whose name differs per point. @name is the name of the policy; @version is %MMP_BPF_VERSION.
 * For anon_order alone, @max_order is the largest order that the program may request and that
 * khugepaged collapses to, and @flags is %MMP_BPF_IF_NEAR or 0. @knobs starts with the knobs
 * that have a name. The module sets @prog, the loaded function.
 */
#define MMP_BPF_OPS							\
	char name[MMP_BPF_NAME];					\
	u32 version;							\
	u32 max_order;							\
	u32 flags;							\
	struct mmp_bpf_knob knobs[MMP_BPF_KNOBS];			\
	struct bpf_prog *prog

/*
 * Common layout of the struct_ops of all points, such as struct
 * mmp_anon_order_ops: the function, then MMP_BPF_OPS. The module accesses all of
 * them as this struct.
 */
struct mmp_bpf_ops {
	u32 (*ask)(const void *told);

	MMP_BPF_OPS;
};

/*
 * struct_ops of anon_order. The program returns the requested order in the low 16 bits, and the
 * reason (enum mmp_reason) in the high 16 bits.
 */
struct mmp_anon_order_ops {
	u32 (*order)(const struct mmp_fault *fault);

	MMP_BPF_OPS;
};

/* struct_ops of the point thp_gfp. The program returns an enum mmp_bpf_effort. */
struct mmp_thp_gfp_ops {
	u32 (*effort)(const struct mmp_effort *effort);

	MMP_BPF_OPS;
};

/*
 * struct_ops of the point compact. The program returns 0 for the kernel's own choice, or
 * MMP_BPF_COMPACT() of another one.
 */
struct mmp_compact_ops {
	u32 (*compact)(const struct mmp_compaction *compaction);

	MMP_BPF_OPS;
};

/*
 * Builds the context of a fault for a program. It is inline, as it runs in
 * every such fault.
 */
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

/*
 * Decodes the answer of a program: order in the low 16 bits, reason above. If the order exceeds
 * max_order or the reason is unknown, sets *@cut, lowers the order to max_order at most, and sets
 * the reason to MMP_CAP.
 */
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
 * struct mmp_bpf_facts - copy of a slot's state for sysfs
 * @name: name of its policy
 * @point: point of its policy
 * @error: error reported by the program
 * @program: id of the program
 * @clamped: number of clamped answers
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
