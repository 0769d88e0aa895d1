/* SPDX-License-Identifier: GPL-2.0 */
/* The folio orders that back a range of this process, from pagemap and kpageflags. */
#ifndef FOLIOS_H
#define FOLIOS_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "basics.h"

#define MAX_ORDER	9

static inline int open_file(const char *path)
{
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		die(path);
	return fd;
}

static inline void read_words(int fd, uint64_t first, uint64_t *words, size_t n)
{
	if (pread(fd, words, n * 8, first * 8) < 8)
		die("pread");
}

/* Cache of 512 entries of /proc/kpageflags, because reading entry by entry would take long. */
static struct {
	uint64_t first, flags[512];
	bool valid;
} piece;

static inline uint64_t page_flags(uint64_t pfn)
{
	enum { N = sizeof(piece.flags) / sizeof(*piece.flags) };
	static int fd = -1;

	if (fd < 0)
		fd = open_file("/proc/kpageflags");
	if (!piece.valid || pfn / N * N != piece.first) {
		piece.first = pfn / N * N;
		piece.valid = true;
		read_words(fd, piece.first, piece.flags, N);
	}
	return piece.flags[pfn - piece.first];
}

/* Returns the order of the folio at @pfn; for a tail page, of the rest of its folio. */
static inline int folio_order(uint64_t pfn)
{
	enum { HEAD = 15, TAIL = 16 };
	int pages = 1, order = 0;

	if (!(page_flags(pfn) & (1ULL << HEAD | 1ULL << TAIL)))
		return 0;
	while (pages < 1 << MAX_ORDER && page_flags(pfn + pages) & (1ULL << TAIL))
		pages++;
	while (1 << (order + 1) <= pages)
		order++;
	return order;
}

/*
 * For each page of a range, increments @pages[order of its folio], or
 * @pages[MAX_ORDER + 1] if the page is absent.
 */
static inline void folio_histogram(const void *start, size_t bytes, unsigned long *pages)
{
	size_t n = bytes / PAGE;
	uint64_t *map = calloc(n, 8);
	int fd = open_file("/proc/self/pagemap");

	if (!map)
		die("calloc");
	piece.valid = false;
	read_words(fd, (uintptr_t)start / PAGE, map, n);
	close(fd);
	for (size_t i = 0; i < n;) {
		uint64_t pfn = map[i] & ((1ULL << 55) - 1);
		size_t run = 1;

		if (!(map[i] >> 63)) {
			pages[MAX_ORDER + 1]++;
			i++;
			continue;
		}
		int order = folio_order(pfn);

		while (run < 1UL << order && i + run < n &&
		       (map[i + run] & ((1ULL << 55) - 1)) == pfn + run)
			run++;
		pages[order] += run;
		i += run;
	}
	free(map);
}

#endif /* FOLIOS_H */
