// SPDX-License-Identifier: GPL-2.0
/* The policy to be replayed, compiled for userland under a name that main.c knows. */
#include "mmpolicy.bpf.h"

#undef MMP_POLICY
#define MMP_POLICY(policy, ...)						\
struct mmp_anon_order_ops mmp_replayed = {				\
	.name = #policy, .version = MMP_VERSION, __VA_ARGS__		\
}

#include REPLAYED
