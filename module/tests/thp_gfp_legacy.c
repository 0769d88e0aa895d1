// SPDX-License-Identifier: GPL-2.0
/*
 * The other side of comparisons at thp_gfp, for tests alone: huge pages from the
 * preferred node or not at all, with reclaim, as kernels of 2018 did with
 * MADV_HUGEPAGE. It takes the slot of the hooks in place of mmpolicy.
 */
#include <linux/gfp.h>
#include <linux/mm_policy.h>
#include <linux/module.h>

static gfp_t legacy(struct vm_area_struct *vma, gfp_t gfp)
{
	return __GFP_DIRECT_RECLAIM | __GFP_THISNODE;
}

static void done(struct vm_area_struct *vma, int order, struct folio *folio)
{
}

/* No other point is ever on. */
static const struct mm_policy_ops ops = {
	.abi = MM_POLICY_ABI,
	.thp_done = done,
	.thp_gfp = legacy,
};

static int __init legacy_init(void)
{
	int err = mm_policy_register(&ops);

	if (!err)
		mm_policy_enable(&ops, MM_POLICY_THP_GFP, true);
	return err;
}
module_init(legacy_init);

static void __exit legacy_exit(void)
{
	mm_policy_unregister(&ops);
}
module_exit(legacy_exit);

MODULE_DESCRIPTION("Node-local huge pages with reclaim, to compare with");
MODULE_LICENSE("GPL");
