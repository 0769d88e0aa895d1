// SPDX-License-Identifier: GPL-2.0
/*
 * How long faults take, while an experiment runs.
 *
 * A fault begins and ends in handle_mm_fault(), which a kretprobe watches.
 * Without kretprobes in the kernel, an experiment has no such counters.
 */
#include <linux/kprobes.h>
#include <linux/log2.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/timekeeping.h>

#include "control.h"

DEFINE_STATIC_KEY_FALSE(mmp_timing);

/**
 * mmp_latency_counters - how long the faults of a profile took
 * @profile: whose faults
 * @point: that were decided at this point too
 *
 * Return: %MMP_LATENCIES counters, by log2 of the time in ns.
 */
u64 __percpu *mmp_latency_counters(const struct mmp_profile *profile,
				   enum mm_policy_point point)
{
	return profile->counters + mmp_nr_counters + point * MMP_LATENCIES;
}

#ifdef CONFIG_KRETPROBES

/**
 * struct timed - a fault that is going on
 * @begin: in ns
 * @mm: whose
 * @asked: a bit for each point where it was decided about
 */
struct timed {
	u64 begin;
	const struct mm_struct *mm;
	unsigned long asked;
};

static int latency_fault_begins(struct kretprobe_instance *call, struct pt_regs *regs)
{
	struct vm_area_struct *vma =
		(void *)regs_get_kernel_argument(regs, 0);
	struct timed *timed = (void *)call->data;

	timed->mm = vma->vm_mm;
	timed->asked = vma_is_anonymous(vma) ? BIT(MM_POLICY_ANON_ORDER) : 0;
	timed->begin = ktime_get_mono_fast_ns();
	return 0;
}

NOKPROBE_SYMBOL(latency_fault_begins);

static int latency_fault_ends(struct kretprobe_instance *call, struct pt_regs *regs)
{
	u64 end = ktime_get_mono_fast_ns();
	const struct timed *timed = (void *)call->data;
	unsigned int log = min(ilog2((end - timed->begin) | 1),
			       MMP_LATENCIES - 1);
	const struct mmp_profile *profile;
	int point;

	guard(rcu)();
	profile = mmp_profile_of(timed->mm);
	for_each_set_bit(point, &timed->asked, MM_POLICY_POINTS)
		this_cpu_inc(mmp_latency_counters(profile, point)[log]);
	return 0;
}

NOKPROBE_SYMBOL(latency_fault_ends);

static struct kretprobe probe;

/**
 * mmp_latency_asked - the fault that the task is in was decided about
 * @point: where
 */
void mmp_latency_asked(enum mm_policy_point point)
{
	struct kretprobe_instance *call;

	mmp_for_each_probed_call(call, current)
		if (get_kretprobe(call) == &probe)
			((struct timed *)call->data)->asked |= BIT(point);
}

/**
 * mmp_latency_start - time faults
 *
 * Context: under mmp_lock; may sleep.
 * Return: 0, or why the kernel does not let us.
 */
int mmp_latency_start(void)
{
	int err;

	probe = (struct kretprobe){
		.kp.symbol_name = "handle_mm_fault",
		.entry_handler = latency_fault_begins,
		.handler = latency_fault_ends,
		.data_size = sizeof(struct timed),
		.maxactive = 64 + 2 * num_possible_cpus(),
	};
	err = register_kretprobe(&probe);
	if (!err)
		static_branch_enable(&mmp_timing);
	return err;
}

/* Under mmp_lock; waits for the faults that are being timed. */
void mmp_latency_stop(void)
{
	static_branch_disable(&mmp_timing);
	unregister_kretprobe(&probe);
}

#else

void mmp_latency_asked(enum mm_policy_point point)
{
}

int mmp_latency_start(void)
{
	return 0;
}

void mmp_latency_stop(void)
{
}

#endif
