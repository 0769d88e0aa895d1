// SPDX-License-Identifier: GPL-2.0
/*
 * Times page faults while an experiment asks for it: first touches of anonymous
 * memory, from the request for an order until just before the folio is mapped.
 *
 * About one fault in sixteen is timed. Each CPU chooses it at random,
 * independent of the task and its arm. The clock is read for the timed faults
 * only.
 */
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/string.h>

#include "draw.h"
#include "stamp.h"
#include "whose.h"
#include "../mmpolicy.h"
#include "fault_time.h"

DEFINE_STATIC_KEY_FALSE(mmp_timing);

/**
 * mmp_fault_counters - get the counters of the fault times of a profile
 * @profile: profile of the faults
 * @point: one of the first %MMP_FAULT_POINTS points; selects the faults in
 *	which it decided
 *
 * Return: %MMP_BUCKETS counters, by mmp_bucket() of the time; then the sum of
 * the times in ns; then the number of sampled faults whose time is unknown.
 */
u64 __percpu *mmp_fault_counters(const struct mmp_profile *profile,
				 enum mm_policy_point point)
{
	return profile->counters + mmp_nr_counters + point * MMP_FAULT_COUNTERS;
}

static struct mmp_stamps faults;	/* sampled faults in progress, by their address */
DEFINE_PER_CPU(struct mmp_draw, mmp_fault_draw);

static void fault_missed(const struct vm_fault *vmf)
{
	const struct mmp_profile *profile = mmp_profile_of(vmf->vma->vm_mm);

	this_cpu_inc(mmp_fault_counters(profile, MM_POLICY_ANON_ORDER)[MMP_FAULT_MISSED]);
}

static noinline void fault_stamp(const struct vm_fault *vmf)
{
	const struct mmp_stamp *mine = mmp_stamp_mine(&faults);

	/*
	 * In an empty PMD the policy is asked twice, for PMD size first. The
	 * first call has stored the start time.
	 */
	if (mine && mine->what == vmf->address)
		return;
	/*
	 * A stamp left by this task belongs to an earlier fault that failed, or
	 * whose folio was mapped without mmp_fault_ends(). Its time is unknown.
	 */
	if (mine)
		fault_missed(vmf);
	if (!mmp_stamp_begin(&faults, vmf->address))
		fault_missed(vmf);
}

/**
 * mmp_fault_begins - start timing a fault that was sampled, and choose the next
 * one to sample
 * @vmf: the fault
 * @site: place in the fault path; swap-in is not timed
 */
void mmp_fault_begins(const struct vm_fault *vmf, enum mm_policy_site site)
{
	mmp_draw_again(&mmp_fault_draw, 32);
	if (site != MM_POLICY_SWAPIN)
		fault_stamp(vmf);
}

/**
 * mmp_fault_asked - record that a point has decided in the current fault
 * @point: the point
 */
void mmp_fault_asked(enum mm_policy_point point)
{
	struct mmp_stamp *mine = mmp_stamp_mine(&faults);

	if (mine)
		mine->seen |= BIT(point);
}

static noinline void fault_count(const struct vm_fault *vmf, struct mmp_stamp *mine)
{
	const struct mmp_profile *profile = mmp_profile_of(vmf->vma->vm_mm);
	bool is_this = mine->what == vmf->address;
	unsigned long points = mine->seen | BIT(MM_POLICY_ANON_ORDER);
	u64 ns = mmp_stamp_end(mine);
	unsigned int bucket = mmp_bucket(ns);
	int point;

	if (!is_this || ns > MMP_STAMP_NS) {
		fault_missed(vmf);
		return;
	}
	for_each_set_bit(point, &points, MMP_FAULT_POINTS) {
		u64 __percpu *took = mmp_fault_counters(profile, point);

		this_cpu_inc(took[bucket]);
		this_cpu_add(took[MMP_FAULT_SUM], ns);
	}
}

/**
 * mmp_fault_ends - stop timing a fault, just before its folio is mapped
 * @vmf: the fault
 */
void mmp_fault_ends(const struct vm_fault *vmf)
{
	struct mmp_stamp *mine = mmp_stamp_mine(&faults);

	if (unlikely(mine))
		fault_count(vmf, mine);
}

/**
 * mmp_fault_time - start or stop timing faults
 * @on: true to start
 *
 * Context: under mmp_lock; may sleep.
 * Return: true if this changed the state.
 */
bool mmp_fault_time(bool on)
{
	if (on == static_key_enabled(&mmp_timing))
		return false;
	if (on) {
		memset(&faults, 0, sizeof(faults));
		static_branch_enable(&mmp_timing);
	} else {
		static_branch_disable(&mmp_timing);
	}
	return true;
}
