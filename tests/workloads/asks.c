// SPDX-License-Identifier: GPL-2.0
/*
 * asks KIND TIMES: what one question to a point costs, and all around it.
 * large: a fault that may get a large folio, in memory that is given back each time.
 * free: one page is freed lazily, and used again.
 * Prints the instructions of each, or whatever else the clock counts.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <x86intrin.h>

#include "basics.h"

#define HUGE	(2UL << 20)

/* The beginning of 2 MiB. */
static char *map(void)
{
	char *at = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("mmap");
	return at + -(uintptr_t)at % HUGE;
}

static void fault_again(char *at)
{
	if (madvise(at, HUGE, MADV_DONTNEED))
		die("madvise");
	*(volatile char *)at = 1;
}

static void free_again(char *at)
{
	*(volatile char *)at = 1;
	if (madvise(at, PAGE, MADV_FREE))
		die("madvise");
}

int main(int argc, char **argv)
{
	char *at = map();
	uint64_t begin = 0;
	int i, times = argc == 3 ? atoi(argv[2]) : 0;
	void (*again)(char *) = argc == 3 && !strcmp(argv[1], "free") ? free_again : fault_again;

	if (times < 1)
		die("asks KIND TIMES");
	for (i = -times / 10; i < times; i++) {
		if (!i)
			begin = __rdtsc();
		again(at);
	}
	printf("{\"ticks\": %lu}\n", (unsigned long)(__rdtsc() - begin) / times);
	return 0;
}
