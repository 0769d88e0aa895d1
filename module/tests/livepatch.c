// SPDX-License-Identifier: GPL-2.0
/*
 * For tests: a livepatch that forbids large folios everywhere. With function=NAME, it patches
 * that function with one that behaves identically.
 */
#include <linux/init.h>
#include <linux/kprobes.h>
#include <linux/livepatch.h>
#include <linux/mm_types.h>
#include <linux/module.h>
#include <linux/objtool.h>
#include <linux/static_call.h>

static char *function;
module_param(function, charp, 0);

static unsigned long no_orders(struct vm_area_struct *vma, unsigned long vm_flags,
			       unsigned long tva_flags, unsigned long orders)
{
	return 0;
}

/*
 * Target type of the static call below. The call jumps to the code right after
 * the ftrace call of the patched function, so this function's arguments and
 * result do not matter.
 */
static void nothing(void)
{
}

DEFINE_STATIC_CALL(livepatch_rest, nothing);

static __naked notrace void livepatch_same(void)
{
	asm volatile(ANNOTATE_NOENDBR
		     "	testl	%esp, %esp; je	1f\n"	/* never taken: hides the epilogue */
		     "	jmp	" STATIC_CALL_TRAMP_STR(livepatch_rest) "\n"
		     "1:\n");
}

static struct klp_func functions[] = {
	{ .old_name = "__thp_vma_allowable_orders", .new_func = no_orders },
	{}
};

static struct klp_object objects[] = {
	{ .funcs = functions },		/* functions of vmlinux */
	{}
};

static struct klp_patch patch = {
	.mod = THIS_MODULE,
	.objs = objects,
};

static int __init livepatch_init(void)
{
	struct kprobe probe = { .symbol_name = function, .flags = KPROBE_FLAG_DISABLED };

	if (function) {
		/*
		 * A kprobe on a function is placed at the ftrace call of the function, so this
		 * finds the call.
		 */
		if (!register_kprobe(&probe))
			unregister_kprobe(&probe);
		if (!probe.addr)
			return -ENOENT;
		static_call_update(livepatch_rest, (void *)probe.addr + MCOUNT_INSN_SIZE);
		functions[0] = (struct klp_func){
			.old_name = function, .new_func = livepatch_same,
		};
	}
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
