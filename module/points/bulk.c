// SPDX-License-Identifier: GPL-2.0
/* The point bulk: pages per page_pool refill. */
#include <linux/log2.h>
#include <linux/preempt.h>
#include <linux/timex.h>

#include "../mmpolicy.h"
#include "../trace.h"

enum {
	REFILLS,
	PAGES,
	SHORT,
	FAILED,
	COST_TICKS,
	COST_SAMPLES,
	WANTED,
	GOT = WANTED + 8,
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
	PER_SIZE(WANTED, "wanted"),
	PER_SIZE(GOT, "got"),
};

struct mmp_point mmp_point_bulk = {
	.name = "bulk",
	.host = true,
	.counters = counters,
	.nr_counters = ARRAY_SIZE(counters),
};

/* The refill under way on this CPU: who chose its size, and when it began. */
struct refill {
	const struct mmp_policy *policy;
	cycles_t begin;
};

static DEFINE_PER_CPU(struct refill, refill);

static void count(unsigned int counter, u64 n)
{
	mmp_count(&mmp_default, &mmp_point_bulk, counter, n);
}

/*
 * A refill in softirq, or with softirqs off, stays on its CPU and is alone
 * there. Only such a refill can be timed.
 */
static void begin_timing(const struct mmp_policy *policy)
{
	if (!softirq_count())
		return;
	if (!policy->bulk_done && !static_branch_unlikely(&mmp_measuring))
		return;
	this_cpu_write(refill.policy, policy);
	this_cpu_write(refill.begin, get_cycles());
}

static void end_timing(int nid, unsigned int want, unsigned int got)
{
	cycles_t end = get_cycles();
	const struct mmp_policy *policy;
	u64 ticks;

	if (!softirq_count())
		return;
	policy = this_cpu_read(refill.policy);
	if (!policy)
		return;
	this_cpu_write(refill.policy, NULL);
	ticks = end - this_cpu_read(refill.begin);
	if (policy->bulk_done)
		policy->bulk_done(nid, want, got, ticks);
	if (static_branch_unlikely(&mmp_measuring)) {
		count(COST_TICKS, ticks);
		count(COST_SAMPLES, 1);
	}
}

/* See &mm_policy_ops.bulk_pages. */
unsigned int mmp_bulk_pages(int nid, unsigned int def, unsigned int max)
{
	const struct mmp_settings *settings = rcu_dereference(mmp_default.settings);
	const struct mmp_policy *policy = settings->active[MM_POLICY_BULK];
	unsigned int pages;

	if (!policy)
		return def;
	guard(preempt)();
	pages = policy->bulk_pages(nid, &settings->values[policy->slot]);
	begin_timing(policy);
	return min(pages, max);
}

/*
 * See &mm_policy_ops.bulk_done. Refills are counted here alone: one that was
 * under way at a switch has no first half.
 */
void mmp_bulk_done(int nid, unsigned int want, unsigned int got)
{
	end_timing(nid, want, got);
	count(REFILLS, 1);
	count(PAGES, got);
	count(WANTED + ilog2(want), 1);
	if (got)
		count(GOT + ilog2(got), 1);
	else
		count(FAILED, 1);
	if (got < want)
		count(SHORT, 1);
	trace_mmpolicy_bulk(nid, want, got);
}
