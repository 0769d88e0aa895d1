// SPDX-License-Identifier: GPL-2.0
/* The policies of thp_gfp: the gfp flags that each of them may set. */
#include <linux/gfp.h>

#include "check.h"
#include "policies.h"

static gfp_t ask(const struct mmp_policy *policy, bool madvised)
{
	const struct vm_area_struct vma = { .vm_flags = madvised ? VM_HUGEPAGE : 0 };

	return policy->thp_gfp(&vma, 0, NULL);
}

TEST(thp_gfp_by_examples)
{
	static const struct {
		const struct mmp_policy *policy;
		gfp_t plain, madvised;
	} rows[] = {
		{ &mmp_policy_thp_gfp_light, 0, 0 },
		{ &mmp_policy_thp_gfp_only_compact,
		  __GFP_DIRECT_RECLAIM | __GFP_NORETRY | __GFP_ONLY_COMPACT | __GFP_THISNODE,
		  __GFP_DIRECT_RECLAIM | __GFP_NORETRY | __GFP_ONLY_COMPACT | __GFP_THISNODE },
		{ &mmp_policy_thp_gfp_only_compact_any,
		  __GFP_DIRECT_RECLAIM | __GFP_NORETRY | __GFP_ONLY_COMPACT,
		  __GFP_DIRECT_RECLAIM | __GFP_NORETRY | __GFP_ONLY_COMPACT },
		{ &mmp_policy_thp_gfp_relaxed, __GFP_DIRECT_RECLAIM | __GFP_NORETRY,
		  __GFP_DIRECT_RECLAIM },
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(rows); i++) {
		at("%s", rows[i].policy->name);
		EXPECT(ask(rows[i].policy, false), ==, rows[i].plain);
		EXPECT(ask(rows[i].policy, true), ==, rows[i].madvised);
	}
}

/*
 * Each policy sets only bits of MM_POLICY_GFP_MASK, as the hook drops others,
 * and does not wake kswapd.
 */
TEST(thp_gfp_stays_within_its_bits)
{
	const struct mmp_policy *policy;
	int i, madvised;

	for_each_tested(policy, i) {
		if (policy->point != MM_POLICY_THP_GFP)
			continue;
		for (madvised = 0; madvised < 2; madvised++) {
			gfp_t gfp = ask(policy, madvised);

			at("%s", policy->name);
			EXPECT(gfp & ~MM_POLICY_GFP_MASK, ==, 0);
			EXPECT(gfp & __GFP_KSWAPD_RECLAIM, ==, 0);
			EXPECT(gfp & __GFP_ONLY_COMPACT && !(gfp & __GFP_DIRECT_RECLAIM), ==,
			       false);
		}
	}
}
