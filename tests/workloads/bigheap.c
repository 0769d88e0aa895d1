// SPDX-License-Identifier: GPL-2.0
/*
 * bigheap MIB full|half|mixture|sixteenth|N [madvise [MOST]] - random accesses to a heap, to
 * measure their time.
 *
 * Touches pages in random order: all of them (full), the first half of each 2 MB (half), the first
 * half of every second 2 MB and all of the others (mixture), one page in 16 (sixteenth), or the
 * first N pages of each 2 MB. With "madvise", it then requests huge pages. Prints "ready", then a
 * line four times a second: mean nanoseconds of an access to a touched page, and microseconds of
 * the slowest 32 accesses in a row; one access in four is a write. After MOST accesses it sleeps
 * until the next line, as a server with a fixed load does. Exits with status 1 if a page holds a
 * wrong word.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "basics.h"

#define HUGE 512UL /* pages */
#define BATCH 32
#define LINE_NS 250000000L

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static bool wanted(size_t page, const char *how)
{
	if (!strcmp(how, "half"))
		return page % HUGE < HUGE / 2;
	if (!strcmp(how, "mixture"))
		return page % HUGE < HUGE / 2 || page / HUGE % 2;
	if (!strcmp(how, "sixteenth"))
		return !(page % 16);
	return !strcmp(how, "full") || page % HUGE < strtoul(how, NULL, 10);
}

/*
 * Checks the first word of a page, and writes another word in one access of four. Mixes the first
 * word into @rng, so the next access depends on this one.
 */
static uint64_t access_one(char *memory, size_t page, uint64_t *rng)
{
	uint64_t *words = (uint64_t *)(memory + page * PAGE);

	if (words[0] != page + 1) {
		fprintf(stderr, "page %zu has %lu\n", page, words[0]);
		exit(1);
	}
	if (!(*rng & 3 << 20))
		words[1 + (*rng >> 40) % 500] = *rng;
	*rng ^= words[0] << 32;
	return words[0];
}

static void sleep_until(double ns)
{
	struct timespec until = { ns / 1e9, (long)ns % 1000000000 };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

int main(int argc, char **argv)
{
	size_t pages, kept = 0, page, other, most = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;
	uint64_t rng = SEED, sum = 0;
	uint32_t *order;
	char *memory;

	if (argc < 3)
		return 2;
	pages = strtoul(argv[1], NULL, 10) * (1 << 20) / PAGE;
	memory = mmap(NULL, (pages + HUGE) * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	order = mmap(NULL, pages * sizeof(*order), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || order == MAP_FAILED)
		die("memory");
	madvise(order, pages * sizeof(*order), MADV_NOHUGEPAGE);
	memory += -(uintptr_t)memory % (HUGE * PAGE);
	for (page = 0; page < pages; page++)
		if (wanted(page, argv[2]))
			order[kept++] = page;
	for (page = kept - 1; page; page--) {
		other = next_random(&rng, page + 1);
		pages = order[page], order[page] = order[other], order[other] = pages;
	}
	for (page = 0; page < kept; page++)
		*(uint64_t *)(memory + order[page] * PAGE) = order[page] + 1;
	pages = strtoul(argv[1], NULL, 10) * (1 << 20) / PAGE;
	if (argc > 3 && madvise(memory, pages * PAGE, MADV_HUGEPAGE))
		die("madvise");
	puts("ready");
	fflush(stdout);
	for (;;) {
		double start = now_ns(), last = start, end, longest = 0;
		size_t number = 0, n;

		do {
			for (n = 0; n < BATCH; n++)
				sum += access_one(memory, order[next_random(&rng, kept)], &rng);
			number += BATCH;
			end = now_ns();
			if (end - last > longest)
				longest = end - last;
			last = end;
			if (most && number >= most) {
				sleep_until(start + LINE_NS);
				end = now_ns();
			}
		} while (end - start < LINE_NS);
		printf("%.2f %.1f\n", (end - start) / number, longest / 1e3);
		fflush(stdout);
		if (sum == 1)
			return 1;
	}
}
