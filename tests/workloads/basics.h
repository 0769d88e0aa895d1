/* SPDX-License-Identifier: GPL-2.0 */
/* Constants and helpers that many of the test programs use. */
#ifndef BASICS_H
#define BASICS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE	4096UL
#define SEED	88172645463325252ULL

static inline void die(const char *what)
{
	perror(what);
	exit(1);
}

/* Tells the CPU that this is a good time to pause; QEMU then emulates another CPU. */
static inline void pause_cpu(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#else
	__asm__ volatile("yield");
#endif
}

/* Returns a number below n. Marsaglia's xorshift: equal seeds give equal numbers. */
static inline size_t next_random(uint64_t *rng, size_t n)
{
	*rng ^= *rng << 13;
	*rng ^= *rng >> 7;
	*rng ^= *rng << 17;
	return *rng % n;
}

#endif /* BASICS_H */
