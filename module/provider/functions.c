// SPDX-License-Identifier: GPL-2.0
/* The list of kernel functions that call the module while a point is enabled, for sysfs. */
#include <linux/kernel.h>

#include "direct.h"

static struct mmp_function functions[32];
static enum mm_policy_point looking_for;
static int nr_functions;

/* Selects @point: mmp_functions_add() adds kernel functions to its list from now on. */
void mmp_functions_begin(enum mm_policy_point point)
{
	looking_for = point;
}

void mmp_functions_add(const char *name)
{
	if (!WARN_ON(nr_functions == ARRAY_SIZE(functions)))
		functions[nr_functions++] = (struct mmp_function){ looking_for, name };
}

/*
 * Empties the list of the point selected by mmp_functions_begin(), because the point is
 * unavailable.
 */
void mmp_functions_drop(void)
{
	while (nr_functions && functions[nr_functions - 1].point == looking_for)
		nr_functions--;
}

const struct mmp_function *mmp_provider_functions(int *nr)
{
	*nr = nr_functions;
	return functions;
}
