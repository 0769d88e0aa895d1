// SPDX-License-Identifier: GPL-2.0
/*
 * The point thp_gfp: the hooked vma_thp_gfp_mask() returns the flags of the
 * allocation of a large folio. The policy does not learn whether the allocation
 * succeeded.
 *
 * On kernels without the mm_policy hooks no flag means "compact, but do not
 * reclaim". So policies set a bit of gfp_t that the kernel does not use, and
 * the hooked functions that reclaim return "no progress" if they see it.
 * Allocations that would not reclaim never call these functions.
 */
#include <linux/gfp.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>

#include "direct.h"

unsigned long mmp_back_thp_gfp[MMP_FUNCTIONS];

/*
 * The hooked functions of the point, except the charge to a cgroup; they share
 * one entry, which tells them apart by this order (entry.S).
 */
struct mmp_call mmp_call_thp_gfp = {
	.entry = mmp_entry_thp_gfp_any,
	.need = {
		MMP_NEED_thp_gfp, MMP_NEED_reclaim, MMP_NEED_reclaim_cgroup,
		MMP_NEED_reclaim_node,
	},
	.back = mmp_back_thp_gfp,
};

struct mmp_call mmp_call_charge = {
	.entry = mmp_entry_charge,
	.need = { MMP_NEED_charge },
};

DEFINE_STATIC_CALL_NULL(mmp_charge_original, mmp_replace_charge);

u32 mmp_only_compact = (__force u32)__GFP_ONLY_COMPACT;

/*
 * Runs in place of a function for direct reclaim, for an allocation that must
 * not reclaim: returns that no page was reclaimed.
 */
unsigned long mmp_replace_reclaim(void)
{
	return 0;
}

/*
 * Runs in place of node_reclaim(): returns NODE_RECLAIM_NOSCAN, or no pages
 * where the kernel returns a number.
 */
long mmp_replace_node_reclaim(void)
{
	return mmp_way(MMP_WAY_NODE_RECLAIM_COUNTS) ? 0 : -2;
}

/*
 * Returns true if @memcg or an ancestor would exceed its memory.high or
 * memory.swap.high.
 */
static bool is_over_high(struct mem_cgroup *memcg, unsigned int nr_pages)
{
	for (; memcg && parent_mem_cgroup(memcg); memcg = parent_mem_cgroup(memcg))
		if (page_counter_read(&memcg->memory) + nr_pages > READ_ONCE(memcg->memory.high) ||
		    page_counter_read(&memcg->swap) > READ_ONCE(memcg->swap.high))
			return true;
	return false;
}

/*
 * Runs in place of try_charge_memcg(): if a cgroup is over its high limit, the
 * charge fails at once, so the task neither reclaims nor is throttled.
 */
int mmp_replace_charge(struct mem_cgroup *memcg, gfp_t gfp, unsigned int nr_pages)
{
	int err = -ENOMEM;

	mmp_call_enter();
	if (!is_over_high(memcg, nr_pages))
		err = static_call(mmp_charge_original)(memcg, gfp, nr_pages);
	mmp_call_leave();
	return err;
}

DEFINE_STATIC_CALL_NULL(mmp_thp_gfp_original, mmp_replace_thp_gfp);

bool mmp_wants_thp_gfp(struct vm_area_struct *vma)
{
	return vma && vma_is_anonymous(vma);
}

/*
 * Runs in place of vma_thp_gfp_mask(): asks the policy for the allocation flags
 * of a large folio, as the hook in this function does.
 */
gfp_t mmp_replace_thp_gfp(struct vm_area_struct *vma)
{
	gfp_t gfp = static_call(mmp_thp_gfp_original)(vma);

	return gfp ^ (MM_POLICY_GFP_MASK &
		      (gfp ^ mmp_ask(MM_POLICY_THP_GFP, gfp, thp_gfp, vma, gfp)));
}

/*
 * Makes the static calls of this file call the kernel functions that mmp_needs_find()
 * and mmp_call_find() have found. Context: after these two.
 */
void mmp_thp_gfp_found(void)
{
	static_call_update(mmp_thp_gfp_original, mmp_call_original(&mmp_call_thp_gfp, 0));
	static_call_update(mmp_charge_original, mmp_call_original(&mmp_call_charge, 0));
}
