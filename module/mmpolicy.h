/* SPDX-License-Identifier: GPL-2.0 */
/*
 * mmpolicy: types shared by all parts of the module.
 *
 * A point is one decision of the kernel that the module may take. A policy is
 * one algorithm for a point, and a knob is a bounded number that tunes a
 * policy. A profile holds one policy with its knobs for every point. See
 * docs/design.md.
 */
#ifndef MMPOLICY_H
#define MMPOLICY_H

#include <linux/mm.h>
#include <linux/sysfs.h>

#include "compat.h"

struct mmp_attempt;
struct mmp_decision;
enum mmp_lazy_answer;
struct mmp_profile;

#define MMP_SWITCH	"switch"	/* unit of a knob that is 0 or 1 */
#define MMP_ORDER	"order: 2^n pages"
#define MMP_AVAILABLE	"percent of the node's memory, or of the limit"

/**
 * struct mmp_knob - a bounded number
 * @attr: its sysfs file; the unit is in the name
 * @min: smallest value accepted
 * @max: largest value accepted
 * @def: value at load and after a reset
 * @unit: unit of the number
 * @meaning: its purpose in one line, for the user
 * @slot: index into mmp_settings.values; set at load
 */
struct mmp_knob {
	struct attribute attr;
	u32 min;
	u32 max;
	u32 def;
	const char *unit;
	const char *meaning;
	unsigned int slot;
};

#define MMP_KNOB(_name, _min, _max, _def, _unit, _meaning) {		\
	.attr = { .name = #_name, .mode = 0644 },			\
	.min = (_min), .max = (_max), .def = (_def),			\
	.unit = (_unit), .meaning = (_meaning),				\
}

/**
 * struct mmp_policy - one algorithm for one point
 * @name: name in sysfs, unique in its point
 * @point: point of the policy; a @loadable policy has one only while it is
 *	loaded
 * @knobs: its knobs, or %NULL
 * @nr_knobs: number of knobs
 * @max_knobs: largest number of knobs that a @loadable policy can have
 * @slot: index of its first knob in mmp_settings.values; set at load
 * @lacks: why this kernel cannot run the policy, or %NULL
 * @loadable: loaded and unloaded at run time; sysfs lists it only while @lacks
 *	is %NULL
 * @witness: anon_order: the policy reads accessed bits, so the kernel clears
 *	those of a new folio's first and last page, see
 *	&mm_policy_ops.anon_mapped
 * @anon_order: anon_order: returns the largest order for a fault; context as
 *	for &mm_policy_ops.anon_orders. knob[i] is the value of @knobs[i].
 *	Knob 0 bounds all answers, unless the policy has no knobs or a
 *	@max_order.
 * @max_order: anon_order: upper bound of all answers, independent of knobs
 * @cap: anon_order: returns the upper bound of all answers in a VMA, or %NULL
 *	if knob 0 is the bound
 * @bulk_pages: bulk: returns the number of pages for a refill from node @nid,
 *	which may be %NUMA_NO_NODE. Preemption is off, softirqs may be on.
 *	Setting *@timed requests a call of @bulk_done.
 * @bulk_done: bulk: reports the result of a refill and its duration in ticks of
 *	get_cycles(). Softirqs have been off since @bulk_pages, on one
 *	CPU. Not called for refills for tasks, which may sleep.
 * @madv_free: madv_free: returns how to free a range of an anonymous VMA, and
 *	why; context as for &mm_policy_ops.madv_free_eager
 * @thp_gfp: thp_gfp: returns the flags of %MM_POLICY_GFP_MASK to allocate a
 *	large folio with, in place of @stock; context as for
 *	&mm_policy_ops.thp_gfp, knobs as for @anon_order. The point drops
 *	__GFP_THISNODE if the fault prefers no node, or a node without
 *	memory.
 * @compact_try: compact: returns whether to make this attempt. Context as for
 *	&mm_policy_ops.compact_try, knobs as for @anon_order.
 * @compact_done: compact: reports the result of an attempt; @scanned is the sum
 *	of pages scanned by the migrate scanner and by the free scanner.
 *	%NULL: not called. Context as for &mm_policy_ops.compact_done.
 */
struct mmp_policy {
	const char *name;
	enum mm_policy_point point;
	struct mmp_knob *knobs;
	unsigned int nr_knobs;
	unsigned int max_knobs;
	unsigned int slot;
	const char *lacks;
	bool loadable;
	bool witness;
	unsigned int max_order;
	struct mmp_decision (*anon_order)(const struct vm_fault *vmf,
					  enum mm_policy_site site,
					  const u32 *knob);
	unsigned int (*cap)(const struct vm_area_struct *vma, const u32 *knob);
	unsigned int (*bulk_pages)(int nid, const u32 *knob, bool *timed);
	void (*bulk_done)(int nid, unsigned int want, unsigned int got,
			  u64 ticks);
	enum mmp_lazy_answer (*madv_free)(struct vm_area_struct *vma,
					  unsigned long start, unsigned long end,
					  const u32 *knob);
	gfp_t (*thp_gfp)(const struct vm_area_struct *vma, gfp_t stock,
			 const u32 *knob);
	enum mm_policy_compact (*compact_try)(const struct mmp_attempt *attempt,
					      const u32 *knob);
	void (*compact_done)(const struct mmp_attempt *attempt, bool success,
			     unsigned long scanned, const u32 *knob);
};

/**
 * struct mmp_point - one decision of the kernel that the module may take
 * @name: name in sysfs
 * @knobs: knobs that all its policies share, or %NULL
 * @nr_knobs: number of knobs
 * @counters: names of its counters
 * @nr_counters: number of counters
 * @first_counter: index of its first counter; set at load
 * @node_size: bytes of zeroed memory for each profile and node
 * @shadows: the point can ask a shadow policy, whose answers are counted and
 *	not applied
 * @host: the point acts on the whole host, so only the profile "default" has it
 * @scratch_size: bytes that the point needs while any profile has a policy here
 * @scratch: @scratch_size zeroed bytes, or %NULL. The writer allocates them
 *	before it takes mmp_lock, so that other writers do not wait for
 *	memory.
 * @switched: called with true before the first profile gets a policy here, and
 *	with false after the last one; may sleep; or %NULL
 * @now: name of a sysfs file with a current measurement, or %NULL
 * @read_now: returns the measurement for a profile; may sleep
 */
struct mmp_point {
	const char *name;
	struct mmp_knob *knobs;
	unsigned int nr_knobs;
	const char *const *counters;
	unsigned int nr_counters;
	unsigned int first_counter;
	size_t node_size;
	bool shadows;
	bool host;
	size_t scratch_size;
	void *scratch;
	void (*switched)(bool on);
	const char *now;
	u64 (*read_now)(const struct mmp_profile *profile);
};

/* <point>/point.c */
extern struct mmp_point mmp_point_anon_order;
extern struct mmp_point mmp_point_thp_gfp;
extern struct mmp_point mmp_point_compact;
extern struct mmp_point mmp_point_bulk;
extern struct mmp_point mmp_point_madv_free;

unsigned long mmp_anon_orders(const struct vm_fault *vmf,
			      enum mm_policy_site site);
bool mmp_anon_mapped(const struct vm_fault *vmf, int order);
unsigned long mmp_collapse_orders(struct vm_area_struct *vma, unsigned long addr);
gfp_t mmp_thp_gfp(struct vm_area_struct *vma, gfp_t gfp);
void mmp_thp_done(struct vm_area_struct *vma, int order, struct folio *folio);
enum mm_policy_compact mmp_compact_try(struct zone *zone, int order, gfp_t gfp,
				       enum mm_policy_compact stock);
void mmp_compact_done(struct zone *zone, int order, gfp_t gfp, bool success,
		      unsigned long migrate_scanned,
		      unsigned long free_scanned);
unsigned int mmp_bulk_pages(int nid, unsigned int def, unsigned int max);
void mmp_bulk_done(int nid, unsigned int want, unsigned int got);
bool mmp_madv_free_eager(struct vm_area_struct *vma, unsigned long start,
			 unsigned long end);

/* <point>/<policy>.c */
#define MMP_POLICY(point, name)						\
	extern struct mmp_policy mmp_policy_##point##_##name;
#include "policies.h"
#undef MMP_POLICY

#endif /* MMPOLICY_H */
