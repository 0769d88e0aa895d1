// SPDX-License-Identifier: GPL-2.0
/*
 * The point madv_free: decides whether MADV_FREE frees pages lazily or at once.
 */
#include "../sense/available.h"
#include "../sense/whose.h"
#include "../trace.h"
#include "lazyfree.h"
#include "pages.h"

enum { STOCK, LAZY_PAGES, EAGER_PAGES, PINNED, ANSWER };

static const char *const counters[] = {
	[STOCK] = "stock",
	[LAZY_PAGES] = "lazy_pages",
	[EAGER_PAGES] = "eager_pages",
	[PINNED] = "lazy_pinned",
	[ANSWER + MMP_ANSWER_LAZY] = "lazy",
	[ANSWER + MMP_ANSWER_EAGER] = "eager",
	[ANSWER + MMP_ANSWER_LIMIT] = "eager_limit",
	[ANSWER + MMP_ANSWER_MEMORY] = "eager_memory",
	[ANSWER + MMP_ANSWER_UNKNOWN] = "eager_unknown",
};

static void madv_free_switched(bool on)
{
	mmp_available_watch(on);
	mmp_tracked_switched(on, mmp_point_madv_free.scratch);
}

struct mmp_point mmp_point_madv_free = {
	.name = "madv_free",
	.counters = counters,
	.nr_counters = ARRAY_SIZE(counters),
	.scratch_size = MMP_TRACKED_SCRATCH,
	.switched = madv_free_switched,
	.now = "lazily_freed_pages",
	.read_now = mmp_tracked_lazy_pages,
};

/*
 * Returns true if the range has a pinned page, such as a buffer registered with
 * a device. The kernel does not reclaim such a page while it is lazily freed,
 * so the process may use it again. If it were freed at once, the process would
 * get another page than the device has.
 */
static noinline bool madv_free_keeps(struct vm_area_struct *vma, unsigned long start,
				     unsigned long end)
{
	return mmp_has_pinned(vma->vm_mm) && mmp_pages_pinned(vma->vm_mm, start, end);
}

/* Implements &mm_policy_ops.madv_free_eager. */
bool mmp_madv_free_eager(struct vm_area_struct *vma, unsigned long start,
			 unsigned long end)
{
	struct mmp_profile *profile = mmp_profile_of(vma->vm_mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	const struct mmp_policy *policy = settings->active[MM_POLICY_MADV_FREE];
	u64 __percpu *counter = mmp_counters(profile, &mmp_point_madv_free);
	unsigned long pages = (end - start) / PAGE_SIZE;
	enum mmp_lazy_answer answer;

	if (!policy) {
		this_cpu_inc(counter[STOCK]);
		mmp_tracked_leave(vma->vm_mm);
		return false;
	}
	answer = policy->madv_free(vma, start, end, &settings->values[policy->slot]);
	if (answer && madv_free_keeps(vma, start, end)) {
		this_cpu_inc(counter[PINNED]);
		this_cpu_add(counter[LAZY_PAGES], pages);
		mmp_tracked_leave(vma->vm_mm);
		return false;
	}
	this_cpu_inc(counter[ANSWER + answer]);
	this_cpu_add(counter[answer ? EAGER_PAGES : LAZY_PAGES], pages);
	trace_mmpolicy_madv_free(start, pages, answer);
	return answer;
}
