/* SPDX-License-Identifier: GPL-2.0 */
/* Which folio orders back a range of this process, from pagemap and kpageflags. */
#ifndef FOLIOS_H
#define FOLIOS_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_ORDER	9
#define PAGE		4096UL

static inline void die(const char *what)
{
	perror(what);
	exit(1);
}

static inline void read_words(const char *path, uint64_t first, uint64_t *words, size_t n)
{
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		die(path);
	if (pread(fd, words, n * 8, first * 8) < 8)
		die(path);
	close(fd);
}

/* Order of the folio at @pfn; of a tail page, of what is left of it. */
static inline int folio_order(uint64_t pfn)
{
	enum { HEAD = 15, TAIL = 16 };
	uint64_t flags[1 << MAX_ORDER] = {0};
	int pages = 1, order = 0;

	read_words("/proc/kpageflags", pfn, flags, 1 << MAX_ORDER);
	if (!(flags[0] & (1ULL << HEAD | 1ULL << TAIL)))
		return 0;
	while (pages < 1 << MAX_ORDER && flags[pages] & (1ULL << TAIL))
		pages++;
	while (1 << (order + 1) <= pages)
		order++;
	return order;
}

/* Adds to pages[order] for each page of the range, pages[MAX_ORDER + 1]: none. */
static inline void folio_histogram(const void *start, size_t bytes, unsigned long *pages)
{
	size_t n = bytes / PAGE;
	uint64_t *map = calloc(n, 8);

	if (!map)
		die("calloc");
	read_words("/proc/self/pagemap", (uintptr_t)start / PAGE, map, n);
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
