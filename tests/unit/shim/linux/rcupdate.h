/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_RCUPDATE_H
#define SHIM_RCUPDATE_H

struct rcu_head {
	struct rcu_head *next;
};

#endif /* SHIM_RCUPDATE_H */
