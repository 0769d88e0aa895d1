// SPDX-License-Identifier: GPL-2.0
/* The profile "default", and the static keys of those who observe decisions. */
#include "observe.h"
#include "profile.h"

struct mmp_profile mmp_default = {
	.name = "default",
	.dirs = LIST_HEAD_INIT(mmp_default.dirs),
};

unsigned int mmp_nr_counters;

DEFINE_STATIC_KEY_FALSE(mmp_measuring);
DEFINE_STATIC_KEY_FALSE(mmp_watched);
DEFINE_STATIC_KEY_FALSE(mmp_looked_at);

/**
 * mmp_look_at - begin or end to look at each decision (its cost, its trace)
 * @on: true adds a reason to look, false takes one away
 *
 * Context: may sleep.
 */
void mmp_look_at(bool on)
{
	if (on) {
		static_branch_inc(&mmp_looked_at);
		static_branch_inc(&mmp_watched);
	} else {
		static_branch_dec(&mmp_watched);
		static_branch_dec(&mmp_looked_at);
	}
}
