// SPDX-License-Identifier: GPL-2.0
/* For tests: a livepatch by which nobody may have any large folio. */
#include <linux/init.h>
#include <linux/livepatch.h>
#include <linux/mm_types.h>
#include <linux/module.h>

static unsigned long no_orders(struct vm_area_struct *vma, unsigned long vm_flags,
			       unsigned long tva_flags, unsigned long orders)
{
	return 0;
}

static struct klp_func functions[] = {
	{ .old_name = "__thp_vma_allowable_orders", .new_func = no_orders },
	{}
};

static struct klp_object objects[] = {
	{ .funcs = functions },		/* of the kernel itself */
	{}
};

static struct klp_patch patch = {
	.mod = THIS_MODULE,
	.objs = objects,
};

static int __init livepatch_init(void)
{
	return klp_enable_patch(&patch);
}
module_init(livepatch_init);

static void __exit livepatch_exit(void)
{
}
module_exit(livepatch_exit);

MODULE_DESCRIPTION("A livepatch, for tests of mmpolicy");
MODULE_LICENSE("GPL");
MODULE_INFO(livepatch, "Y");
