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

/* What all that a policy is told begins with. It is for the questions alone. */
struct mmp_told {
	const void *ops;
};

/*
 * anon_order: a fault in anonymous memory. @start and @end are those of the VMA, @site is one of
 * MMP_AT_*, @knob has the values of the policy's knobs in the profile of the process.
 */
struct mmp_fault {
	struct mmp_told told;
	__u64 address;
	__u64 start;
	__u64 end;
	__u32 site;
	__u32 knob[MMP_KNOBS];
};

/*
 * thp_gfp: a fault needs a large folio. @stock is MMP_RELAXED if the kernel by itself compacts and
 * reclaims for it, else MMP_LIGHT; @madvised is 1 after MADV_HUGEPAGE.
 */
struct mmp_effort {
	struct mmp_told told;
	__u64 start;
	__u64 end;
	__u32 knob[MMP_KNOBS];
	__u32 stock;
	__u32 madvised;
};

/*
 * compact: before an attempt to compact a zone of so many @pages, of which so many are @free, and
 * after it, as @when says. @zone is its number, below 65,536, @order that of the folio that it is
 * for, @movable is 1 if that can be moved. @stock, an answer, is what the kernel does by itself.
 * @scanned are the pages that the attempt has looked at; of one that found none to look at, nothing
 * is told.
 */
struct mmp_compaction {
	struct mmp_told told;
	__u64 pages;
	__u64 free;
	__u64 scanned;
	__u32 knob[MMP_KNOBS];
	__u32 when;
	__u32 zone;
	__u32 order;
	__u32 movable;
	__u32 stock;
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
 * The policy of a point. All but its function is checked at load: @name has a-z, 0-9 and _,
 * @version is MMP_VERSION, @knobs can be left out. Of anon_order, @max_order is 2 to 9 and @flags
 * is MMP_IF_NEAR or 0.
 */
struct mmp_anon_order_ops {
	__u32 (*order)(const struct mmp_fault *fault);
	char name[16];
	__u32 version;
	__u32 max_order;
	__u32 flags;
	struct mmp_bpf_knob knobs[MMP_KNOBS];
};

struct mmp_thp_gfp_ops {
	__u32 (*effort)(const struct mmp_effort *effort);
	char name[16];
	__u32 version;
	struct mmp_bpf_knob knobs[MMP_KNOBS];
};

struct mmp_compact_ops {
	__u32 (*compact)(const struct mmp_compaction *compaction);
	char name[16];
	__u32 version;
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
enum { MMP_CAP, MMP_DENSE_NEIGHBOUR, MMP_NO_ROOM, MMP_NO_NEIGHBOUR, MMP_SPARSE_NEIGHBOUR };

/* An order of 0 to 9, 4 for 64 kB, and its reason. What is above max_order is cut and counted. */
#define MMP_ANSWER(order, reason)	((__u32)(order) | (__u32)(reason) << 16)

/* Answers of thp_gfp and compact: as the kernel by itself. All that is no answer is this one. */
#define MMP_STOCK	0
/* Those of thp_gfp, as docs/policies/thp_gfp.md has them, */
enum { MMP_LIGHT = 1, MMP_ONLY_COMPACT, MMP_ONLY_COMPACT_ANY, MMP_RELAXED };
/* and of compact: leave the zone out, compact it, or also its blocks that were of no use lately. */
enum { MMP_DEFER = 1, MMP_TRY, MMP_TRY_ALL };
/* mmp_compaction.when. After an attempt, the answer counts for nothing. */
enum { MMP_BEFORE, MMP_FAILED, MMP_SUCCEEDED };

/* Questions of anon_order alone. */

/* How many of @pages pages, at most 64, were used? The first is @first pages from the fault. */
extern __u32 mmp_bpf_used(const struct mmp_fault *fault, __s64 first, __u32 pages) __ksym;
/* How many of them are there, used or not? */
extern __u32 mmp_bpf_mapped(const struct mmp_fault *fault, __s64 first, __u32 pages) __ksym;
/* Were @least of the 16 pages used in the aligned 64 kB that are @blocks from those of the fault? */
extern __u32 mmp_bpf_full(const struct mmp_fault *fault, __s64 blocks, __u32 least) __ksym;

/* Questions of all points. */

/* How many blocks of 2^@order pages are free on the node of this CPU? */
extern __u64 mmp_bpf_free(const struct mmp_told *told, __u32 order) __ksym;
/* How many pages does the cgroup of the process have? 0 in the root cgroup. */
extern __u64 mmp_bpf_cgroup_pages(const struct mmp_told *told) __ksym;
/* How much of the last 10 s did somebody in it wait for memory, in percent? 0 in the root. */
extern __u32 mmp_bpf_pressure(const struct mmp_told *told) __ksym;
/* Give up: all that has this policy goes to stock. @text is a static const char[]. */
extern void mmp_bpf_error(const struct mmp_told *told, const char *text) __ksym;

/* They take what the policy is told, whatever the point. */
#define mmp_bpf_free(told, order)	mmp_bpf_free((const void *)(told), order)
#define mmp_bpf_cgroup_pages(told)	mmp_bpf_cgroup_pages((const void *)(told))
#define mmp_bpf_pressure(told)		mmp_bpf_pressure((const void *)(told))
#define mmp_bpf_error(told, text)	mmp_bpf_error((const void *)(told), text)

/* The pages from the first one of the aligned 2^@order pages around a fault to the fault. */
static inline __s64 mmp_into(const struct mmp_fault *fault, __u32 order)
{
	return fault->address >> 12 & ((1ULL << order) - 1);
}

/* Before a function: it is the answer of a policy of anon_order, thp_gfp or compact. */
#define MMP_ORDER(name)		MMP_FUNCTION(name, mmp_fault, fault)
#define MMP_EFFORT(name)	MMP_FUNCTION(name, mmp_effort, effort)
#define MMP_COMPACT(name)	MMP_FUNCTION(name, mmp_compaction, compaction)

#define MMP_FUNCTION(name, type, told)					\
static inline __u32 name##_of(const struct type *told);			\
SEC("struct_ops/" #name)						\
__u32 name(unsigned long long *ctx)					\
{									\
	return name##_of((const struct type *)ctx[0]);			\
}									\
static inline __attribute__((always_inline)) __u32 name##_of(const struct type *told)

/* The policy itself: MMP_POLICY(fixed, .order = (void *)order, .max_order = 4); */
#define MMP_POLICY(policy, ...)		MMP_POLICY_OF(anon_order, policy, __VA_ARGS__)

/* The same of another point: MMP_POLICY_OF(thp_gfp, light, .effort = (void *)effort); */
#define MMP_POLICY_OF(point, policy, ...)				\
SEC(".struct_ops.link")							\
struct mmp_##point##_ops policy = {					\
	.name = #policy, .version = MMP_VERSION, __VA_ARGS__		\
}

char LICENSE[] SEC("license") = "GPL";

#endif /* MMPOLICY_BPF_H */
