// SPDX-License-Identifier: GPL-2.0
/*
 * Slots for BPF programs. A slot with a program is a policy of one point; the
 * functions here call its program.
 *
 * The module calls the program directly, because the trampoline of struct_ops
 * takes more instructions than everything else here. So each slot holds its own
 * reference to the program. A slot without a program answers stock.
 */
#include <linux/filter.h>
#include <linux/mmzone.h>
#include <linux/vmstat.h>

#include "../compact/compact.h"
#include "ask.h"

#define CREATE_TRACE_POINTS
#include "told.h"

struct mmp_bpf_slot mmp_bpf_slots[MMP_BPF_SLOTS];
static struct mmp_knob slot_knobs[MMP_BPF_SLOTS][MMP_BPF_KNOBS];
/* core.c lists &mmp_bpf_policies[0] to [3], so it must change with this number */
static_assert(MMP_BPF_SLOTS == 4);
DEFINE_PER_CPU(u64, mmp_bpf_clamped[MMP_BPF_SLOTS]);

/*
 * Runs a program while the kernel measures the run time of BPF programs. This function is not
 * inlined, as it saves more registers than the fast path.
 */
static noinline u32 bpf_timed_answer(const struct bpf_prog *prog, const u64 *arg)
{
	return bpf_prog_run(prog, arg);
}

/*
 * Runs a program and returns its answer. Disables preemption, as the program may
 * use per-CPU maps. Context: RCU read section, so the program is not freed.
 */
static __always_inline u32 bpf_answer(const struct bpf_prog *prog, const void *told)
{
	const u64 arg = (unsigned long)told;
	u32 answer;

	if (!MMP_BPF)
		return 0;
	preempt_disable();
	if (static_branch_unlikely(&bpf_stats_enabled_key))
		answer = bpf_timed_answer(prog, &arg);
	else
		answer = prog->bpf_func(&arg, prog->insnsi);
	preempt_enable();
	return answer;
}

/*
 * Counts an answer that was clamped or replaced by stock, for the slot of @ops.
 * This is rare, so it searches all slots.
 */
static noinline void bpf_count_cut(const struct mmp_bpf_ops *ops)
{
	unsigned int nr;

	for (nr = 0; nr < MMP_BPF_SLOTS; nr++)
		if (rcu_access_pointer(mmp_bpf_slots[nr].ops) == ops)
			this_cpu_inc(mmp_bpf_clamped[nr]);
}

/*
 * Traces an answer of a program. Not inlined, so that only a traced call saves
 * the registers for it.
 */
static noinline u32 bpf_show_order(const struct mmp_fault *fault, u32 answer)
{
	trace_mmpolicy_bpf_anon_order(fault, answer);
	return answer;
}

/*
 * The next two functions serve anon_order alone. The callbacks of the slots
 * (BPF_CALLBACKS) tail-call them, so those callbacks save no registers.
 */
static noinline struct mmp_decision bpf_order(const struct vm_fault *vmf, enum mm_policy_site site,
					      const struct mmp_bpf_ops *ops, const u32 *knob)
{
	const struct mmp_fault fault = mmp_bpf_fault(vmf, site, ops, knob);
	u32 answer = bpf_answer(ops->prog, &fault);
	struct mmp_decision d;
	bool cut;

	if (trace_mmpolicy_bpf_anon_order_enabled())
		answer = bpf_show_order(&fault, answer);
	d = mmp_bpf_decision(ops, answer, &cut);
	if (unlikely(cut))
		bpf_count_cut(ops);
	return d;
}

static noinline struct mmp_decision bpf_order_if_near(const struct vm_fault *vmf,
						      enum mm_policy_site site,
						      const struct mmp_bpf_ops *ops,
						      const u32 *knob)
{
	if (!mmp_anon_order_near(vmf))
		return (struct mmp_decision){ .reason = MMP_NO_NEIGHBOUR };
	return bpf_order(vmf, site, ops, knob);
}

/*
 * Returns @answer if it is below @count, the number of valid answers. Otherwise
 * counts the answer as clamped, and returns 0 (stock).
 */
static u32 bpf_choice(const struct mmp_bpf_ops *ops, u32 answer, u32 count)
{
	if (likely(answer < count))
		return answer;
	bpf_count_cut(ops);
	return 0;
}

static const struct mmp_policy *const efforts[MMP_BPF_EFFORTS] = {
	[MMP_BPF_LIGHT] = &mmp_policy_thp_gfp_light,
	[MMP_BPF_ONLY_COMPACT] = &mmp_policy_thp_gfp_only_compact,
	[MMP_BPF_ONLY_COMPACT_ANY] = &mmp_policy_thp_gfp_only_compact_any,
	[MMP_BPF_RELAXED] = &mmp_policy_thp_gfp_relaxed,
};

static gfp_t bpf_effort(const struct vm_area_struct *vma, gfp_t stock, unsigned int nr,
			const u32 *knob)
{
	const struct mmp_bpf_ops *ops = rcu_dereference(mmp_bpf_slots[nr].ops);
	const struct mmp_effort effort = {
		.told = { ops, vma->vm_mm },
		.start = vma->vm_start,
		.end = vma->vm_end,
		.knob = { knob[0], knob[1], knob[2], knob[3] },
		.stock = stock & __GFP_DIRECT_RECLAIM ? MMP_BPF_RELAXED : MMP_BPF_LIGHT,
		.madvised = !!(vma->vm_flags & VM_HUGEPAGE),
	};
	u32 answer;

	if (!ops)
		return stock;
	answer = bpf_answer(ops->prog, &effort);
	trace_mmpolicy_bpf_thp_gfp(&effort, answer);
	answer = bpf_choice(ops, answer, MMP_BPF_EFFORTS);
	return answer == MMP_BPF_STOCK ? stock : efforts[answer]->thp_gfp(vma, stock, knob);
}

static struct mmp_compaction bpf_compaction(const struct mmp_attempt *attempt,
					    const struct mmp_bpf_ops *ops, const u32 *knob)
{
	struct zone *zone = attempt->zone;

	return (struct mmp_compaction){
		.told = { ops },
		.pages = zone_managed_pages(zone),
		.free = zone_page_state(zone, NR_FREE_PAGES),
		.knob = { knob[0], knob[1], knob[2], knob[3] },
		.zone = zone_to_nid(zone) * MAX_NR_ZONES + zone_idx(zone),
		.order = attempt->order,
		.movable = !!(attempt->gfp & __GFP_MOVABLE),
	};
}

static enum mm_policy_compact bpf_compact(const struct mmp_attempt *attempt, unsigned int nr,
					  const u32 *knob)
{
	const struct mmp_bpf_ops *ops = rcu_dereference(mmp_bpf_slots[nr].ops);
	struct mmp_compaction compaction;
	u32 answer;

	if (!ops)
		return attempt->stock;
	compaction = bpf_compaction(attempt, ops, knob);
	compaction.stock = MMP_BPF_COMPACT(attempt->stock);
	answer = bpf_answer(ops->prog, &compaction);
	trace_mmpolicy_bpf_compact(&compaction, answer);
	answer = bpf_choice(ops, answer, MMP_BPF_COMPACT(MM_POLICY_TRY_ALL) + 1);
	return answer == MMP_BPF_STOCK ? attempt->stock : answer - MMP_BPF_COMPACT(0);
}

static void bpf_compact_done(const struct mmp_attempt *attempt, bool success,
			     unsigned long scanned, unsigned int nr, const u32 *knob)
{
	const struct mmp_bpf_ops *ops = rcu_dereference(mmp_bpf_slots[nr].ops);
	struct mmp_compaction compaction;
	u32 answer;

	if (!ops)
		return;
	compaction = bpf_compaction(attempt, ops, knob);
	compaction.when = success ? MMP_BPF_SUCCEEDED : MMP_BPF_FAILED;
	compaction.scanned = scanned;
	answer = bpf_answer(ops->prog, &compaction);
	trace_mmpolicy_bpf_compact(&compaction, answer);
}

/*
 * Defines the functions that call the BPF program of slot @nr. Their arguments do not identify the
 * slot, so each slot has its own functions.
 */
#define BPF_CALLBACKS(nr)							\
static struct mmp_decision bpf_order_##nr(const struct vm_fault *vmf,		\
					  enum mm_policy_site site, const u32 *knob) \
{										\
	const struct mmp_bpf_ops *ops = rcu_dereference(mmp_bpf_slots[nr].ops);	\
										\
	if (unlikely(!ops))							\
		return (struct mmp_decision){ .order = MMP_ORDER_STOCK };	\
	if (ops->flags & MMP_BPF_IF_NEAR)					\
		return bpf_order_if_near(vmf, site, ops, knob);			\
	return bpf_order(vmf, site, ops, knob);					\
}										\
static unsigned int bpf_cap_##nr(const struct vm_area_struct *vma, const u32 *knob) \
{										\
	const struct mmp_bpf_ops *ops = rcu_dereference(mmp_bpf_slots[nr].ops);	\
										\
	return ops ? ops->max_order : MMP_MAX_ORDER;				\
}										\
static gfp_t bpf_effort_##nr(const struct vm_area_struct *vma, gfp_t stock, const u32 *knob) \
{										\
	return bpf_effort(vma, stock, nr, knob);				\
}										\
static enum mm_policy_compact bpf_compact_##nr(const struct mmp_attempt *attempt, \
					       const u32 *knob)			\
{										\
	return bpf_compact(attempt, nr, knob);					\
}										\
static void bpf_compact_done_##nr(const struct mmp_attempt *attempt, bool success, \
				  unsigned long scanned, const u32 *knob)	\
{										\
	bpf_compact_done(attempt, success, scanned, nr, knob);			\
}

BPF_CALLBACKS(0)
BPF_CALLBACKS(1)
BPF_CALLBACKS(2)
BPF_CALLBACKS(3)

/*
 * Defines the policy of slot @nr, which can hold a BPF program. Its point is set when a program is
 * registered.
 */
#define BPF_POLICY(nr) {							\
	.name = mmp_bpf_slots[nr].name, .lacks = MMP_BPF_NOBODY, .loadable = true, \
	.knobs = slot_knobs[nr], .max_knobs = MMP_BPF_KNOBS,			\
	.anon_order = bpf_order_##nr, .cap = bpf_cap_##nr, .thp_gfp = bpf_effort_##nr, \
	.compact_try = bpf_compact_##nr, .compact_done = bpf_compact_done_##nr,	\
}

struct mmp_policy mmp_bpf_policies[MMP_BPF_SLOTS] = {
	BPF_POLICY(0), BPF_POLICY(1), BPF_POLICY(2), BPF_POLICY(3),
};
