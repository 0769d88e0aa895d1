/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_MINMAX_H
#define SHIM_MINMAX_H

/*
 * The kernel's min() and max() refuse to compare signed with unsigned; here, -Wsign-compare does.
 */
#define min(a, b) ({			\
	__auto_type min_a = (a);	\
	__auto_type min_b = (b);	\
	min_a < min_b ? min_a : min_b;	\
})
#define max(a, b) ({			\
	__auto_type max_a = (a);	\
	__auto_type max_b = (b);	\
	max_a > max_b ? max_a : max_b;	\
})
#define min3(a, b, c) ({			\
	__auto_type min3_ab = min(a, b);	\
	__auto_type min3_c = (c);		\
	min3_ab < min3_c ? min3_ab : min3_c;	\
})
#define clamp(value, low, high)	min(max(value, low), high)

#endif /* SHIM_MINMAX_H */
