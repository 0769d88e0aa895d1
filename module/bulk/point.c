// SPDX-License-Identifier: GPL-2.0
/* The point bulk: chooses how many pages a page_pool refill requests. */
#include <linux/log2.h>
#include <linux/preempt.h>
#include <linux/timex.h>

#include "../sense/observe.h"
#include "../sense/whose.h"
#include "../trace.h"

enum {
	REFILLS,
	PAGES,
	SHORT,
	FAILED,
	COST_TICKS,
	COST_SAMPLES,
	REQUESTED,
	ALLOCATED = REQUESTED + 8,
};

static const char *const counters[] = {
	[REFILLS] = "refills",
	[PAGES] = "pages",
	[SHORT] = "short",
	[FAILED] = "failed",
	[COST_TICKS] = "cost_ticks",
	[COST_SAMPLES] = "cost_samples",
#define PER_SIZE(base, name)						\
	[base] = name "_pages_1", name "_pages_2", name "_pages_4",	\
	name "_pages_8", name "_pages_16", name "_pages_32",		\
	name "_pages_64", name "_pages_128"
	PER_SIZE(REQUESTED, "requested"),
	PER_SIZE(ALLOCATED, "allocated"),
};

struct mmp_point mmp_point_bulk = {
	.name = "bulk",
	.host = true,
	.counters = counters,
	.nr_counters = ARRAY_SIZE(counters),
};

/* The refill in progress on this CPU: the policy that times it, and its start. */
struct refill {
	const struct mmp_policy *policy;
	cycles_t begin;
};

static DEFINE_PER_CPU(struct refill, refill);

/*
 * Starts timing a refill, but only with softirqs off: the refill then stays on
 * its CPU, and no other refill interrupts it.
 */
static void bulk_begin_timing(const struct mmp_policy *policy)
{
	if (!softirq_count())
		return;
	this_cpu_write(refill.policy, policy);
	this_cpu_write(refill.begin, get_cycles());
}

static void bulk_end_timing(u64 __percpu *counter, int nid, unsigned int want,
			    unsigned int got)
{
	const struct mmp_policy *policy = this_cpu_read(refill.policy);
	u64 ticks;

	if (!policy || !softirq_count())
		return;
	ticks = get_cycles() - this_cpu_read(refill.begin);
	this_cpu_write(refill.policy, NULL);
	if (policy->bulk_done)
		policy->bulk_done(nid, want, got, ticks);
	if (static_branch_unlikely(&mmp_measuring)) {
		this_cpu_add(counter[COST_TICKS], ticks);
		this_cpu_inc(counter[COST_SAMPLES]);
	}
}

/* Implements &mm_policy_ops.bulk_pages. */
unsigned int mmp_bulk_pages(int nid, unsigned int def, unsigned int max)
{
	const struct mmp_settings *settings = rcu_dereference(mmp_default.settings);
	const struct mmp_policy *policy = settings->active[MM_POLICY_BULK];
	bool timed = false;
	unsigned int pages;

	if (!policy)
		return def;
	guard(preempt)();
	pages = policy->bulk_pages(nid, &settings->values[policy->slot], &timed);
	if (timed || static_branch_unlikely(&mmp_measuring))
		bulk_begin_timing(policy);
	return min(pages, max);
}

/*
 * Implements &mm_policy_ops.bulk_done. The point counts refills here rather
 * than in mmp_bulk_pages(), because a refill that began before the hook was
 * turned on calls only this function.
 */
void mmp_bulk_done(int nid, unsigned int want, unsigned int got)
{
	u64 __percpu *counter = mmp_counters(&mmp_default, &mmp_point_bulk);

	bulk_end_timing(counter, nid, want, got);
	this_cpu_inc(counter[REFILLS]);
	this_cpu_add(counter[PAGES], got);
	this_cpu_inc(counter[REQUESTED + ilog2(want)]);
	if (got)
		this_cpu_inc(counter[ALLOCATED + ilog2(got)]);
	else
		this_cpu_inc(counter[FAILED]);
	if (got < want)
		this_cpu_inc(counter[SHORT]);
	trace_mmpolicy_bulk(nid, want, got);
}
