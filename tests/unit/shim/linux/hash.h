/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_HASH_H
#define SHIM_HASH_H

#include <linux/mm_types.h>

static inline u32 hash_ptr(const void *ptr, unsigned int bits)
{
	return (uintptr_t)ptr * 0x61c8864680b583ebULL >> (64 - bits);
}

#endif /* SHIM_HASH_H */
