/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_JIFFIES_H
#define SHIM_JIFFIES_H

extern unsigned long jiffies;

#define time_before_eq(a, b)	((long)((a) - (b)) <= 0)

/* HZ is 250, as in Debian, so a jiffy has 4 ms. */
static inline unsigned int jiffies_to_msecs(unsigned long j)
{
	return 4 * j;
}

#endif /* SHIM_JIFFIES_H */
