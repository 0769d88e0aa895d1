/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_BITOPS_H
#define SHIM_BITOPS_H

#define BIT(n)		(1UL << (n))
#define BIT_ULL(n)	(1ULL << (n))

static inline unsigned int __ffs(unsigned long word)
{
	return __builtin_ctzl(word);
}

static inline unsigned int __fls(unsigned long word)
{
	return 63 - __builtin_clzl(word);
}

#endif /* SHIM_BITOPS_H */
