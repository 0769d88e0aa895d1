// SPDX-License-Identifier: GPL-2.0
/*
 * Baseline for comparisons at thp_gfp, for tests alone: huge pages from the preferred node or
 * not at all, with reclaim, as kernels of 2018 did with MADV_HUGEPAGE. It registers for the
 * hooks in place of mmpolicy.
 */
#include <linux/gfp.h>
#include <linux/mm_policy.h>
#include <linux/module.h>

static bool incomplete;
module_param(incomplete, bool, 0444);
MODULE_PARM_DESC(incomplete, "leave a callback out, which the kernel has to refuse");

static gfp_t legacy_gfp(struct vm_area_struct *vma, gfp_t gfp)
{
	return __GFP_DIRECT_RECLAIM | __GFP_THISNODE;
}

static void legacy_done(struct vm_area_struct *vma, int order, struct folio *folio)
{
}

/*
 * Never called: the kernel requires a callback for each point, also for those that are never turned
 * on.
 */
static void legacy_never(void)
{
}

static struct mm_policy_ops ops = {
	.abi = MM_POLICY_ABI,
	.anon_orders = (void *)legacy_never,
	.anon_mapped = (void *)legacy_never,
	.collapse_orders = (void *)legacy_never,
	.thp_gfp = legacy_gfp,
	.thp_done = legacy_done,
	.compact_try = (void *)legacy_never,
	.compact_done = (void *)legacy_never,
	.bulk_pages = (void *)legacy_never,
	.bulk_done = (void *)legacy_never,
	.madv_free_eager = (void *)legacy_never,
};

static int __init legacy_init(void)
{
	int err;

	if (incomplete)
		ops.madv_free_eager = NULL;
	err = mm_policy_register(&ops);
	if (!err)
		mm_policy_enable(&ops, MM_POLICY_THP_GFP, true);
	else
		mm_policy_unregister(&ops);	/* does nothing if another module is registered */
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
