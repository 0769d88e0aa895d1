/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Answers in advance: a policy that has just answered a fault with a page may give this answer
 * to the next faults of the task on this CPU, too. Where the kernel calls the module through
 * ftrace, these faults then skip the call (provider/fault.c). The hooks ask about each fault.
 */
#ifndef MMPOLICY_AHEAD_H
#define MMPOLICY_AHEAD_H

#include <linux/percpu.h>

#include "anon_order.h"

/* The number of faults, with the reason in the lowest bits. */
DECLARE_PER_CPU(u32, mmp_ahead);

#define MMP_AHEAD_SHIFT	8
#define MMP_AHEAD_MOST	64U

/**
 * mmp_answer_ahead - answer the next faults of the task on this CPU with a page, too
 * @faults: their number, at most %MMP_AHEAD_MOST
 * @reason: the reason that is counted for them
 */
static __always_inline void mmp_answer_ahead(u32 faults, enum mmp_reason reason)
{
#ifndef CONFIG_MM_POLICY
	this_cpu_write(mmp_ahead, faults << MMP_AHEAD_SHIFT | reason);
#endif
}

#endif /* MMPOLICY_AHEAD_H */
