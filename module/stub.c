// SPDX-License-Identifier: GPL-2.0
/*
 * Built in place of the module for a kernel that the module cannot run on, such
 * as one with neither the mm_policy hooks nor the options for ftrace. Loading
 * the stub prints the reason and fails.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/module.h>

static int __init mmp_init(void)
{
#ifdef MMP_NOT_BUILT
	pr_err("the module could not be built for this kernel: see make.log below /var/lib/dkms/mmpolicy\n");
#elif PAGE_SHIFT != 12
	pr_err("the pages of this kernel have %lu kB, and the module needs pages of 4 kB\n",
	       PAGE_SIZE / 1024);
#else
	pr_err("this kernel has neither CONFIG_MM_POLICY (see kernel-hooks/) nor all options that the module needs without it: CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, KALLSYMS_ALL, KPROBES, SMP, TRANSPARENT_HUGEPAGE, and X86_64 or ARM64_4K_PAGES\n");
#endif
	return -EOPNOTSUPP;
}
module_init(mmp_init);

MODULE_DESCRIPTION("Stub of mmpolicy for kernels without its hooks");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
