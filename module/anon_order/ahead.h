/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Answers in advance: a policy that has just answered order 0 may also answer
 * order 0 for the next faults of this task on this CPU. On a kernel without the
 * mm_policy hooks, these faults then skip the ftrace call into the module
 * (provider/fault.c). Kernels with the hooks ask about each fault, so they
 * ignore answers in advance.
 */
#ifndef MMPOLICY_AHEAD_H
#define MMPOLICY_AHEAD_H

#include <linux/percpu.h>

#include "anon_order.h"

/*
 * Number of the next faults that are answered in advance on this CPU (0: none),
 * shifted by MMP_AHEAD_SHIFT; the low bits have their enum mmp_reason.
 */
DECLARE_PER_CPU(u32, mmp_ahead);

#define MMP_AHEAD_SHIFT	8
#define MMP_AHEAD_MOST	64U

/**
 * mmp_answer_ahead - also answer order 0 for the next faults of this task on
 * this CPU
 * @faults: number of later faults to answer, at most %MMP_AHEAD_MOST
 * @reason: the reason under which these faults are counted
 */
static __always_inline void mmp_answer_ahead(u32 faults, enum mmp_reason reason)
{
#ifndef CONFIG_MM_POLICY
	this_cpu_write(mmp_ahead, faults << MMP_AHEAD_SHIFT | reason);
#endif
}

#endif /* MMPOLICY_AHEAD_H */
