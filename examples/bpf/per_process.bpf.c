// SPDX-License-Identifier: GPL-2.0
/*
 * Requests 2 MB for one process, and pages for all others.
 *
 * mmpolicy set anon_order per_process pid=$(pidof redis-server)
 */
#include "mmpolicy.bpf.h"

enum { PID };

MMP_ORDER(order)
{
	if (bpf_get_current_pid_tgid() >> 32 != fault->knob[PID])
		return MMP_ANSWER(0, MMP_CAP);
	return MMP_ANSWER(9, MMP_CAP);
}

MMP_POLICY(per_process, .order = (void *)order, .max_order = 9, .knobs = {
	[PID] = { "pid", "a process", "which one has huge pages", .max = 1 << 22 },
});
