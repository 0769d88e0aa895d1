// SPDX-License-Identifier: GPL-2.0
/*
 * For tests alone: while this module attaches its probe to its own tracepoint,
 * it sleeps under the lock of all tracepoints. So each other task that attaches
 * or detaches a probe waits, as it might when memory is short.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/tracepoint.h>

#include "../compat.h"

static unsigned int ms = 1000;
module_param(ms, uint, 0444);
MODULE_PARM_DESC(ms, "how long attaching the probe takes, in ms");

MMP_DECLARE_TRACE(mmpolicy_slow, TP_PROTO(int unused), TP_ARGS(unused));

/* Runs under the lock of all tracepoints when a probe is attached. */
static int slow_begin(void)
{
	msleep(ms);
	return 0;
}

static void slow_end(void)
{
}

DEFINE_TRACE_FN(mmpolicy_slow, slow_begin, slow_end, TP_PROTO(int unused),
		TP_ARGS(unused));

static void nothing(void *unused, int number)
{
}

static int __init slow_listener_init(void)
{
	return register_trace_mmpolicy_slow(nothing, NULL);
}
module_init(slow_listener_init);

static void __exit slow_listener_exit(void)
{
	unregister_trace_mmpolicy_slow(nothing, NULL);
	tracepoint_synchronize_unregister();
}
module_exit(slow_listener_exit);

MODULE_DESCRIPTION("Attaches a probe slowly, so that other users of tracepoints wait, for tests");
MODULE_LICENSE("GPL");
