/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Lists all policies in the directories of module/, found by the names of their
 * files.
 */
#ifndef POLICIES_H
#define POLICIES_H

#include "mmpolicy.h"

#define POLICY(point, POINT, name)	extern struct mmp_policy mmp_policy_##point##_##name;
#include "policies.inc"
#undef POLICY

#define POLICY(point_, POINT, name)					\
	{ &mmp_policy_##point_##_##name, MM_POLICY_##POINT, #name,	\
	  #point_ "/" #name },
static const struct {
	struct mmp_policy *policy;
	enum mm_policy_point point;	/* from the name of the file's directory */
	const char *name;
	const char *path;
} policies[] = {
#include "policies.inc"
};
#undef POLICY

#define for_each_tested(p, i)						\
	for ((i) = 0; (i) < (int)ARRAY_SIZE(policies) &&		\
		      ((p) = policies[i].policy); (i)++)

/* Loops over the policies of anon_order. */
#define for_each_anon_order(policy, i)					\
	for_each_tested(policy, i)					\
		if ((policy)->point == MM_POLICY_ANON_ORDER)

#endif /* POLICIES_H */
