// SPDX-License-Identifier: GPL-2.0
/*
 * For tests alone: two threads increment one counter without a lock until the module is
 * unloaded. KCSAN must report this data race.
 */
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/sched.h>

static struct task_struct *threads[2];
static unsigned long count;

static int race_count(void *unused)
{
	while (!kthread_should_stop()) {
		count++;
		cond_resched();
	}
	return 0;
}

static void race_exit(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(threads); i++)
		if (!IS_ERR_OR_NULL(threads[i]))
			kthread_stop(threads[i]);
}
module_exit(race_exit);

static int __init race_init(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(threads); i++) {
		threads[i] = kthread_run(race_count, NULL, "race");
		if (IS_ERR(threads[i])) {
			race_exit();
			return -ENOMEM;
		}
	}
	return 0;
}
module_init(race_init);

MODULE_DESCRIPTION("A data race, for tests of mmpolicy");
MODULE_LICENSE("GPL");
