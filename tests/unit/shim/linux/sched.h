/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_SCHED_H
#define SHIM_SCHED_H

struct task_struct {
	int id;
};

extern struct task_struct *current;

#endif /* SHIM_SCHED_H */
