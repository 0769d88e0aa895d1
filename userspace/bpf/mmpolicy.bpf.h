/* SPDX-License-Identifier: GPL-2.0 */
/*
 * All that a policy in BPF needs, version 1. See docs/writing-a-policy.md; module/bpf/bpf.h is
 * the module's side. No vmlinux.h: libbpf finds the members in the loaded module.
 */
#ifndef MMPOLICY_BPF_H
#define MMPOLICY_BPF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* MMP_POLICY() has defaults, which what stands after them may replace. */
#pragma clang diagnostic ignored "-Winitializer-overrides"

#define MMP_KNOBS	4	/* the most that a policy can have */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/*
 * A fault in anonymous memory. @start and @end are those of the VMA, @site is one of MMP_AT_*,
 * @knob has the values of the policy's knobs in the profile of the process.
 */
struct mmp_fault {
	__u64 address;
	__u64 start;
	__u64 end;
	__u32 site;
	__u32 knob[MMP_KNOBS];
};

/* A number that the user can set, in each profile. All of it is checked at load. */
struct mmp_bpf_knob {
	char name[24];
	char unit[24];
	char meaning[80];
	__u32 min;
	__u32 max;
	__u32 def;
};

/*
 * The policy. @order answers with MMP_ANSWER(). The others are all checked at load: @name has
 * a-z, 0-9 and _, @version is MMP_VERSION, @max_order is 2 to 9, @flags is MMP_IF_NEAR or 0,
 * @knobs can be left out.
 */
struct mmp_anon_order_ops {
	__u32 (*order)(const struct mmp_fault *fault);
	char name[16];
	__u32 version;
	__u32 max_order;
	__u32 flags;
	struct mmp_bpf_knob knobs[MMP_KNOBS];
};

#pragma clang attribute pop

#define MMP_VERSION	1
#define MMP_IF_NEAR	1	/* asked only where a page nearby may have been used, else order 0 */

enum {
	MMP_AT_PTE,	/* first touch; there is a page table */
	MMP_AT_PMD,	/* there is none yet: 9 gives a huge page, any other answer is asked for again */
	MMP_AT_SWAPIN,
	MMP_AT_COPY,	/* a write to shared memory */
};

/* Reasons, which the counters of the point tell apart. */
enum { MMP_CAP, MMP_RUN, MMP_INSIDE, MMP_ALONE, MMP_UNUSED };

/* An order of 0 to 9, 4 for 64 kB, and its reason. What is above max_order is cut and counted. */
#define MMP_ANSWER(order, reason)	((__u32)(order) | (__u32)(reason) << 16)

/* How many of @pages pages, at most 64, were used? The first is @first pages from the fault. */
extern __u32 mmp_bpf_used(const struct mmp_fault *fault, __s64 first, __u32 pages) __ksym;
/* How many of them are there, used or not? */
extern __u32 mmp_bpf_mapped(const struct mmp_fault *fault, __s64 first, __u32 pages) __ksym;
/* Were @least of the 16 pages used in the aligned 64 kB that are @blocks from those of the fault? */
extern __u32 mmp_bpf_full(const struct mmp_fault *fault, __s64 blocks, __u32 least) __ksym;
/* How many blocks of 2^@order pages are free on the node of this CPU? */
extern __u64 mmp_bpf_free(const struct mmp_fault *fault, __u32 order) __ksym;
/* How many pages does the cgroup of the process have? 0 in the root cgroup. */
extern __u64 mmp_bpf_cgroup_pages(const struct mmp_fault *fault) __ksym;
/* How much of the last 10 s did somebody in it wait for memory, in percent? 0 in the root. */
extern __u32 mmp_bpf_pressure(const struct mmp_fault *fault) __ksym;
/* Give up: all that has this policy goes to stock. @text is a static const char[]. */
extern void mmp_bpf_error(const struct mmp_fault *fault, const char *text) __ksym;

/* The pages from the first one of the aligned 2^@order pages around a fault to the fault. */
static inline __s64 mmp_into(const struct mmp_fault *fault, __u32 order)
{
	return fault->address >> 12 & ((1ULL << order) - 1);
}

/* Before a function: it is the answer of a policy. */
#define MMP_ORDER(name)							\
static inline __u32 name##_of(const struct mmp_fault *fault);		\
SEC("struct_ops/" #name)						\
__u32 name(unsigned long long *ctx)					\
{									\
	return name##_of((const struct mmp_fault *)ctx[0]);		\
}									\
static inline __attribute__((always_inline)) __u32 name##_of(const struct mmp_fault *fault)

/* The policy itself: MMP_POLICY(fixed, .order = (void *)order, .max_order = 4); */
#define MMP_POLICY(policy, ...)						\
SEC(".struct_ops.link")							\
struct mmp_anon_order_ops policy = {					\
	.name = #policy, .version = MMP_VERSION, __VA_ARGS__		\
}

char LICENSE[] SEC("license") = "GPL";

#endif /* MMPOLICY_BPF_H */
