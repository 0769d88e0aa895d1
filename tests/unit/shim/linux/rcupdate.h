/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_RCUPDATE_H
#define SHIM_RCUPDATE_H

struct rcu_head {
	struct rcu_head *next;
};

/* These are plain accesses, as the unit tests have one thread. */
#define rcu_dereference(p)		(p)
#define rcu_assign_pointer(p, v)	((p) = (v))
#define rcu_replace_pointer(p, v, c) ({	\
	__auto_type old = (p);		\
	(p) = (v);			\
	old;				\
})
#define synchronize_rcu()		((void)0)

#endif /* SHIM_RCUPDATE_H */
