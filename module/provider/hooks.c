// SPDX-License-Identifier: GPL-2.0
/* The kernel has hooks: all points are there, and enabling one is all that it takes. */
#include "provider.h"

const char *const mmp_provider = "hooks";

const char *mmp_provider_lacks(enum mm_policy_point point)
{
	return NULL;
}

int mmp_provider_hook(enum mm_policy_point point)
{
	return 0;
}

void mmp_provider_unhook(enum mm_policy_point point)
{
}
