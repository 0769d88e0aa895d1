// SPDX-License-Identifier: GPL-2.0
/*
 * crumble: fragments free memory, so that no free block is larger than two pages. It allocates all
 * free memory as single pages, and frees those that are not the first of four in physical memory.
 * Remaining larger blocks are then allocated for an area with large folios, so a policy for large
 * folios must be active. Prints one JSON object: kB free in total, and in larger blocks. Then waits
 * until it is killed, as its exit frees the memory.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include "folios.h"

#define LEFT		(4UL << 20)	/* bytes left free, so that the OOM killer is not invoked */
#define STEP		64UL		/* pages between two checks */

static unsigned char *map(size_t size)
{
	void *area = mmap(NULL, size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (area == MAP_FAILED)
		die("mmap");
	return area;
}

static void touch(volatile unsigned char *area, size_t first, size_t n)
{
	for (size_t i = first; i < first + n; i++)
		area[i * PAGE] = 1;
}

static struct sysinfo memory(void)
{
	struct sysinfo info;

	if (sysinfo(&info))
		die("sysinfo");
	return info;
}

static size_t take_all(unsigned char *area)
{
	size_t n = 0;

	while (memory().freeram > LEFT + STEP * PAGE) {
		touch(area, n, STEP);
		n += STEP;
	}
	return n;
}

static void give_back(unsigned char *area, size_t n)
{
	uint64_t *entry = calloc(n, sizeof(*entry));

	if (!entry)
		die("calloc");
	read_words(open_file("/proc/self/pagemap"), (uintptr_t)area / PAGE, entry, n);
	for (size_t i = 0; i < n; i++)
		if (entry[i] % 4 && madvise(area + i * PAGE, PAGE, MADV_DONTNEED))
			die("madvise");
	free(entry);
}

/* Returns the number of pages in free blocks of four or more pages, in all zones. */
static unsigned long in_blocks(void)
{
	unsigned long sum = 0;
	char line[512];
	FILE *f = fopen("/proc/buddyinfo", "r");

	if (!f)
		die("/proc/buddyinfo");
	while (fgets(line, sizeof(line), f)) {
		char *at = strstr(line, "zone") + 4;

		while (*at == ' ')
			at++;
		at = strchr(at, ' ');
		for (int order = 0; at && order < 11; order++) {
			unsigned long blocks = strtoul(at, &at, 10);

			sum += order >= 2 ? blocks << order : 0;
		}
	}
	fclose(f);
	return sum;
}

int main(void)
{
	size_t size = memory().totalram & -PAGE, n;
	unsigned char *area = map(size), *rest = map(size);

	if (madvise(area, size, MADV_NOHUGEPAGE))
		die("MADV_NOHUGEPAGE");
	n = take_all(area);
	give_back(area, n);
	for (n = 0; in_blocks() > 4 * STEP && memory().freeram > size / 2; n += STEP)
		touch(rest, n, STEP);
	printf("{\"free_kb\": %lu, \"blocks_kb\": %lu}\n", memory().freeram / 1024,
	       in_blocks() * PAGE / 1024);
	fflush(stdout);
	pause();
	return 0;
}
