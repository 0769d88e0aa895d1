// SPDX-License-Identifier: GPL-2.0
/*
 * asks KIND TIMES: cost of one question to a point, including its surroundings.
 *
 * KIND is "large": a fault that may get a large folio, after MADV_DONTNEED; or "free": a page is
 * written, and freed by MADV_FREE. Prints the mean cost of one round in the median batch, in ticks
 * of the time stamp counter (instructions under QEMU's icount). The median leaves out batches in
 * which the kernel did other work.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "basics.h"
#include "ticks.h"

#define HUGE	(2UL << 20)
#define BATCHES	25

/* Maps 2 MiB of memory, aligned to 2 MiB. */
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

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Returns the median of ticks per call, over all batches but the first, which warms up caches. */
static uint64_t median_of_batches(void (*again)(char *at), char *at, int times)
{
	uint64_t ticks[BATCHES + 1];

	for (int batch = 0; batch <= BATCHES; batch++) {
		uint64_t begin = ticks_now();

		for (int i = 0; i < times / BATCHES; i++)
			again(at);
		ticks[batch] = (ticks_now() - begin) / (times / BATCHES);
	}
	qsort(ticks + 1, BATCHES, sizeof(*ticks), ascending);
	return ticks[1 + BATCHES / 2];
}

int main(int argc, char **argv)
{
	char *at = map();
	int times = argc == 3 ? atoi(argv[2]) : 0;
	void (*again)(char *) = argc == 3 && !strcmp(argv[1], "free") ? free_again : fault_again;

	if (times < BATCHES)
		die("asks KIND TIMES");
	printf("{\"ticks\": %lu}\n", (unsigned long)median_of_batches(again, at, times));
	return 0;
}
