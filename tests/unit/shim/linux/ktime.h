/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_KTIME_H
#define SHIM_KTIME_H

#include <linux/mm_types.h>

#define NSEC_PER_SEC	1000000000UL

extern u64 sim_ns;

#define ktime_get_ns()	(sim_ns)

#endif /* SHIM_KTIME_H */
