// SPDX-License-Identifier: GPL-2.0
/*
 * The profile "default", which decides for all processes that have no other
 * one.
 */
#include "profile.h"

struct mmp_profile mmp_default = {
	.name = "default",
	.dirs = LIST_HEAD_INIT(mmp_default.dirs),
};

unsigned int mmp_nr_counters;
