// SPDX-License-Identifier: GPL-2.0
/*
 * lives MIB - a heap of up to MIB that grows and shrinks by command, and is written all the time.
 *
 * Prints "ready", and reads commands of two numbers in MiB from its input: "fill FROM TO" writes
 * each page, in a scattered order; "zero FROM TO" writes zeroes to 15 pages in 16, as a program that
 * clears memory it no longer needs; "drop FROM TO" frees it by MADV_DONTNEED. "show" needs no
 * numbers. The answer to each is a line: the address, pages that are filled, pages that are wrong,
 * and a letter for each 2 MB: f if all pages are filled, p if some are, - if none is.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <string.h>
#include <sys/mman.h>

#include "basics.h"

#define HUGE 512UL /* pages */
#define MIB 256UL /* pages */
#define PAUSE_MS 20
#define WRITES 200 /* writes after each pause */

static uint64_t rng = SEED;
static size_t pages;
static char *memory;
static unsigned char *filled;

static uint64_t *words(size_t page)
{
	return (uint64_t *)(memory + page * PAGE);
}

static void fill(size_t from, size_t to)
{
	size_t step = 2 * next_random(&rng, 1 << 16) + 1, size = 1, at, n;

	while (size < to - from)
		size *= 2;
	/* an odd step visits each of @size pages once, as @size is a power of two */
	for (n = 0, at = 0; n < size; n++, at = (at + step * 4099) & (size - 1)) {
		if (from + at >= to)
			continue;
		words(from + at)[0] = from + at + 1;
		filled[from + at] = 1;
	}
}

static void zero(size_t from, size_t to)
{
	size_t page;

	for (page = from; page < to; page++) {
		if (page % 16 == 0)
			continue;
		memset(words(page), 0, PAGE);
		filled[page] = 0;
	}
}

static void show(void)
{
	size_t page, sum = 0, wrong = 0, full = 0;

	for (page = 0; page < pages; page++) {
		sum += filled[page];
		wrong += filled[page] && words(page)[0] != page + 1;
	}
	printf("%lx %zu %zu ", (unsigned long)memory, sum, wrong);
	for (page = 0; page < pages; page++) {
		full += filled[page];
		if (page % HUGE == HUGE - 1) {
			putchar(full == HUGE ? 'f' : full ? 'p' : '-');
			full = 0;
		}
	}
	putchar('\n');
	fflush(stdout);
}

static void write_some(void)
{
	size_t n, page;

	for (n = 0; n < WRITES; n++) {
		page = next_random(&rng, pages);
		if (filled[page])
			words(page)[1 + n] = rng;
	}
}

int main(int argc, char **argv)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	size_t from, to;
	char line[64];

	if (argc < 2)
		return 2;
	pages = strtoul(argv[1], NULL, 10) * MIB / HUGE * HUGE;
	memory = mmap(NULL, (pages + HUGE) * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	filled = calloc(pages, 1);
	if (memory == MAP_FAILED || !filled)
		die("memory");
	memory += -(uintptr_t)memory % (HUGE * PAGE);
	setvbuf(stdin, NULL, _IONBF, 0);
	puts("ready");
	fflush(stdout);
	for (;;) {
		if (!poll(&input, 1, PAUSE_MS)) {
			write_some();
			continue;
		}
		if (!fgets(line, sizeof(line), stdin))
			return 0;
		if (sscanf(line + 4, "%zu %zu", &from, &to) == 2) {
			from *= MIB, to *= MIB;
			if (from > to || to > pages)
				return 2;
			if (!strncmp(line, "fill", 4))
				fill(from, to);
			else if (!strncmp(line, "zero", 4))
				zero(from, to);
			else if (madvise(words(from), (to - from) * PAGE, MADV_DONTNEED))
				die("madvise");
			else
				memset(filled + from, 0, to - from);
		}
		show();
	}
}
