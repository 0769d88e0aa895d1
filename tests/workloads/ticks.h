/* SPDX-License-Identifier: GPL-2.0 */
/* A clock that counts instructions under QEMU's icount. */
#ifndef TICKS_H
#define TICKS_H

#include <stdint.h>

#ifdef __x86_64__
#include <x86intrin.h>

static inline uint64_t ticks_now(void)
{
	return __rdtsc();
}
#else
#include <time.h>

/*
 * Returns ns, which are instructions under icount. The counter register of
 * arm64 is not used, as it has one tick per 16 ns.
 */
static inline uint64_t ticks_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000UL + now.tv_nsec;
}
#endif

#endif /* TICKS_H */
