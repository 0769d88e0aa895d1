// SPDX-License-Identifier: GPL-2.0
/*
 * The policy to be replayed, compiled for user space under a name that main.c
 * knows.
 */
#include "layout.h"
#include "mmpolicy.bpf.h"

const unsigned long mmp_authors_layout[] = MMP_LAYOUT;

#undef MMP_POLICY_OF
#define MMP_POLICY_OF(point, policy, ...)				\
_Static_assert(!__builtin_strcmp(#point, "anon_order"),			\
	       "only policies of anon_order can be replayed");		\
struct mmp_##point##_ops mmp_replayed = {				\
	.name = #policy, .version = MMP_VERSION, __VA_ARGS__		\
}

#include REPLAYED
