// SPDX-License-Identifier: GPL-2.0
/*
 * For tests alone: the process that loads this module sleeps in its next MADV_DONTNEED of at
 * least 1 MiB, like a process whose memory a device or a guest must release first.
 */
#include <linux/delay.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sizes.h>

static unsigned int ms = 1000;
module_param(ms, uint, 0444);
MODULE_PARM_DESC(ms, "how long the notifier sleeps, in ms");

static int notifier_begin(struct mmu_notifier *notifier,
			  const struct mmu_notifier_range *range)
{
	if (range->event == MMU_NOTIFY_CLEAR && range->end - range->start >= SZ_1M &&
	    mmu_notifier_range_blockable(range))
		msleep(xchg(&ms, 0));
	return 0;
}

static const struct mmu_notifier_ops ops = {
	.invalidate_range_start = notifier_begin,
};

static struct mmu_notifier notifier = { .ops = &ops };

static int __init notifier_init(void)
{
	return mmu_notifier_register(&notifier, current->mm);
}
module_init(notifier_init);

static void __exit notifier_exit(void)
{
	mmu_notifier_unregister(&notifier, notifier.mm);
}
module_exit(notifier_exit);

MODULE_DESCRIPTION("A notifier that sleeps, for tests of mmpolicy");
MODULE_LICENSE("GPL");
