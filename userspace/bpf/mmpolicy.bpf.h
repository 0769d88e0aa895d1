/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Declarations for a policy in BPF, version 1. See docs/writing-a-policy.md; module/bpf/bpf.h is
 * the module's side. No vmlinux.h is needed: libbpf relocates the members to those of the loaded
 * module.
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

/* MMP_POLICY() has defaults, which its arguments may override. */
#pragma clang diagnostic ignored "-Winitializer-overrides"

#define MMP_KNOBS	4	/* maximum per policy */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/*
 * The context structs have the layout of the module's (module/bpf/bpf.h),
 * because `./dev replay` passes the module's to programs. Their first member,
 * struct mmp_told, is only an argument of kfuncs.
 */
struct mmp_told {
	const void *ops;
	const void *mm;
};

/*
 * anon_order: a fault in anonymous memory. @start and @end are the bounds of
 * its VMA, @site is one of MMP_AT_*, and @knob has the values of the policy's
 * knobs in the profile of the process.
 */
struct mmp_fault {
	struct mmp_told told;
	__u64 address;
	__u64 start;
	__u64 end;
	__u32 knob[MMP_KNOBS];
	__u32 site;
};

/*
 * thp_gfp: a fault needs a large folio. @stock is the kernel's own choice:
 * MMP_RELAXED if it compacts and reclaims for the folio, else MMP_LIGHT.
 * @madvised is 1 after MADV_HUGEPAGE.
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
 * compact: called before and after an attempt to compact a zone, see @when.
 * @pages is the number of pages of the zone, @free of its free pages, @zone its
 * number, below 65,536. @order is the requested order, @movable is 1 if the
 * requested folio is movable. @stock is the kernel's own decision, as an
 * answer. @scanned is the number of pages that the attempt has scanned; an
 * attempt that found none to scan is not reported.
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

/*
 * A number that users can set in each profile. All members are checked at load.
 */
struct mmp_bpf_knob {
	char name[24];
	char unit[24];
	char meaning[80];
	__u32 min;
	__u32 max;
	__u32 def;
};

/*
 * The policy of a point. All members except the function are checked at load:
 * @name consists of a-z, 0-9 and _, @version is MMP_VERSION, @knobs is
 * optional. For anon_order, @max_order is 2 to 9 and @flags is MMP_IF_NEAR or
 * 0.
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
#define MMP_IF_NEAR	1	/* call order() only if a page nearby may be used; else order 0 */

enum {
	MMP_AT_PTE,	/* first touch; there is a page table */
	MMP_AT_PMD,	/* no page table: order 9 gives a huge page, others lead to MMP_AT_PTE */
	MMP_AT_SWAPIN,
	MMP_AT_COPY,	/* a write to shared memory */
};

/* Reasons of an answer. The point has a counter for each. */
enum { MMP_CAP, MMP_DENSE_NEIGHBOUR, MMP_NO_ROOM, MMP_NO_NEIGHBOUR, MMP_SPARSE_NEIGHBOUR };

/*
 * An answer: the order, 0 to 9 (4 is 64 kB), and its reason. Orders above
 * max_order are lowered to it.
 */
#define MMP_ANSWER(order, reason)	((__u32)(order) | (__u32)(reason) << 16)

/*
 * Answer of thp_gfp and compact: the kernel's own choice. Invalid answers have
 * this effect, too.
 */
#define MMP_STOCK	0
/* Answers of thp_gfp, see docs/policies/thp_gfp.md. */
enum { MMP_LIGHT = 1, MMP_ONLY_COMPACT, MMP_ONLY_COMPACT_ANY, MMP_RELAXED };
/*
 * Answers of compact: skip the zone, compact it, or also compact pageblocks
 * that failed lately.
 */
enum { MMP_DEFER = 1, MMP_TRY, MMP_TRY_ALL };
/* mmp_compaction.when. After an attempt, the answer is ignored. */
enum { MMP_BEFORE, MMP_FAILED, MMP_SUCCEEDED };

/* Kfuncs for anon_order only. */

/*
 * Counts the used pages among @pages pages, at most 64, that begin @first pages
 * after the fault (before it, if negative).
 */
extern __u32 mmp_bpf_used(const struct mmp_fault *fault, __s64 first, __u32 pages) __ksym;
/* Counts the present pages, used or not; arguments as for mmp_bpf_used(). */
extern __u32 mmp_bpf_mapped(const struct mmp_fault *fault, __s64 first, __u32 pages) __ksym;
/*
 * Returns 1 if at least @least of the 16 pages of an aligned 64 kB block were
 * used, else 0. The block lies @blocks blocks after the block of the fault
 * (before it, if negative).
 */
extern __u32 mmp_bpf_full(const struct mmp_fault *fault, __s64 blocks, __u32 least) __ksym;

/* Kfuncs for all points. */

/*
 * Returns the number of free blocks of 2^@order pages on the node of this CPU.
 * A larger free block counts as several.
 */
extern __u64 mmp_bpf_free(const struct mmp_told *told, __u32 order) __ksym;
/*
 * Returns the number of pages charged to the cgroup of the process; 0 in the
 * root cgroup.
 */
extern __u64 mmp_bpf_cgroup_pages(const struct mmp_told *told) __ksym;
/*
 * Returns the share of the last 10 s, in percent, in which tasks of the cgroup
 * of the process waited for memory (PSI "some"); 0 in the root cgroup.
 */
extern __u32 mmp_bpf_pressure(const struct mmp_told *told) __ksym;
/*
 * Reports an error: all profiles with this policy go to stock. @text is a
 * static const char[].
 */
extern void mmp_bpf_error(const struct mmp_told *told, const char *text) __ksym;

/* Let the kfuncs above take the context of any point. */
#define mmp_bpf_free(told, order)	mmp_bpf_free((const void *)(told), order)
#define mmp_bpf_cgroup_pages(told)	mmp_bpf_cgroup_pages((const void *)(told))
#define mmp_bpf_pressure(told)		mmp_bpf_pressure((const void *)(told))
#define mmp_bpf_error(told, text)	mmp_bpf_error((const void *)(told), text)

/*
 * Returns the offset of a fault, in pages, from the start of the aligned block
 * of 2^@order pages around it.
 */
static inline __s64 mmp_into(const struct mmp_fault *fault, __u32 order)
{
	return fault->address >> 12 & ((1ULL << order) - 1);
}

/*
 * Begin the definition of a program's function, for anon_order, thp_gfp or
 * compact.
 */
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

/* Defines the policy: MMP_POLICY(fixed, .order = (void *)order, .max_order = 4); */
#define MMP_POLICY(policy, ...)		MMP_POLICY_OF(anon_order, policy, __VA_ARGS__)

/*
 * Defines a policy of another point: MMP_POLICY_OF(thp_gfp, light, .effort =
 * (void *)effort);
 */
#define MMP_POLICY_OF(point, policy, ...)				\
SEC(".struct_ops.link")							\
struct mmp_##point##_ops policy = {					\
	.name = #policy, .version = MMP_VERSION, __VA_ARGS__		\
}

char LICENSE[] SEC("license") = "GPL";

#endif /* MMPOLICY_BPF_H */
