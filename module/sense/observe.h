/* SPDX-License-Identifier: GPL-2.0 */
/* Static keys for observers of decisions: shadow policies, traces, and costs. */
#ifndef MMPOLICY_OBSERVE_H
#define MMPOLICY_OBSERVE_H

#include <linux/jump_label.h>
#include <linux/types.h>

/*
 * On while debugfs "measure" is 1: decisions are timed in ticks of
 * get_cycles().
 */
DECLARE_STATIC_KEY_FALSE(mmp_measuring);
/*
 * On while decisions have an observer. Its count is the number of shadow
 * policies, and one more while mmp_looked_at is on.
 */
DECLARE_STATIC_KEY_FALSE(mmp_watched);
/*
 * On while all decisions take the slow path. Its count is the number of enabled
 * tracepoints, and one more while debugfs "measure" is 1.
 */
DECLARE_STATIC_KEY_FALSE(mmp_looked_at);
void mmp_look_at(bool on);

#endif /* MMPOLICY_OBSERVE_H */
