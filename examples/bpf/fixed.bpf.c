// SPDX-License-Identifier: GPL-2.0
/* Requests 64 kB for each fault, like the policy fixed of the module. */
#include "mmpolicy.bpf.h"

MMP_ORDER(order)
{
	return MMP_ANSWER(4, MMP_CAP);
}

MMP_POLICY(fixed64, .order = (void *)order, .max_order = 4);
