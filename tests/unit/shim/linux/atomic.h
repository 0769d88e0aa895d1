/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_ATOMIC_H
#define SHIM_ATOMIC_H

typedef struct { long n; } atomic_long_t;

#define atomic_long_read(a)	((a)->n)
#define atomic_long_add(i, a)	((a)->n += (i))
#define atomic_long_sub(i, a)	((a)->n -= (i))

/* These are plain accesses, as the unit tests have one thread. */
#define cmpxchg64(p, old, new) ({			\
	__auto_type was = *(p);				\
							\
	if (was == (old))				\
		*(p) = (new);				\
	was;						\
})
#define smp_store_release(p, v)	(*(p) = (v))

#endif /* SHIM_ATOMIC_H */
