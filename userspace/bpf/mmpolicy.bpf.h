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

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* A fault in anonymous memory. @start and @end are those of the VMA, @site is one of MMP_AT_*. */
struct mmp_fault {
	__u64 address;
	__u64 start;
	__u64 end;
	__u32 site;
};

/*
 * The policy. @order answers with MMP_ANSWER(). The others are all checked at load: @name has
 * a-z, 0-9 and _, @version is MMP_VERSION, @max_order is 2 to 9, @flags is MMP_IF_NEAR or 0.
 */
struct mmp_anon_order_ops {
	__u32 (*order)(const struct mmp_fault *fault);
	char name[16];
	__u32 version;
	__u32 max_order;
	__u32 flags;
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
