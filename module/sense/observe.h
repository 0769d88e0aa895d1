/* SPDX-License-Identifier: GPL-2.0 */
/* Who wants to know more of a decision than its answer. */
#ifndef MMPOLICY_OBSERVE_H
#define MMPOLICY_OBSERVE_H

#include <linux/jump_label.h>
#include <linux/types.h>

/* Is the cost of decisions counted, in ticks of get_cycles()? */
DECLARE_STATIC_KEY_FALSE(mmp_measuring);
/* Is there more to a decision than its answer? Counted: shadows, and mmp_looked_at. */
DECLARE_STATIC_KEY_FALSE(mmp_watched);
/* Is every decision looked at? Counted: their cost, traces. */
DECLARE_STATIC_KEY_FALSE(mmp_looked_at);
void mmp_look_at(bool on);

#endif /* MMPOLICY_OBSERVE_H */
