/* SPDX-License-Identifier: GPL-2.0 */
/* The policies in module/policies/, found by file name. */
#ifndef POLICIES_H
#define POLICIES_H

#include "mmpolicy.h"

#define POLICY(name)	extern struct mmp_policy mmp_anon_order_##name;
#include "policies.inc"
#undef POLICY

#define POLICY(name)	&mmp_anon_order_##name,
static struct mmp_policy *const policies[] = {
#include "policies.inc"
};
#undef POLICY

#define POLICY(name)	#name,
static const char *const policy_files[] __attribute__((unused)) = {
#include "policies.inc"
};
#undef POLICY

#define for_each_tested(policy, i)					\
	for ((i) = 0; (i) < (int)ARRAY_SIZE(policies) &&		\
		      ((policy) = policies[i]); (i)++)

#endif /* POLICIES_H */
