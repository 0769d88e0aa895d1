// SPDX-License-Identifier: GPL-2.0
/*
 * Static keys that are on while decisions of policies are measured or traced.
 */
#include "observe.h"
#include "whose.h"

DEFINE_STATIC_KEY_FALSE(mmp_measuring);
DEFINE_STATIC_KEY_FALSE(mmp_watched);
DEFINE_STATIC_KEY_FALSE(mmp_looked_at);

/**
 * mmp_look_at - add or drop an observer of all decisions, such as a trace
 * @on: true adds an observer, false drops one
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
	/*
	 * drops answers given in advance, as an observer would miss these
	 * faults
	 */
	mmp_whose_outdate_tasks();
}
