// SPDX-License-Identifier: GPL-2.0
/*
 * highalloc MIB FREE PINNED ORDER TRIES ROUNDS CHURNERS SEED [FILE]: after mmtests'
 * stress-highalloc. Fills MIB of memory with small pages, and pins some of them in PINNED percent
 * of the 2 MiB blocks, so that these can never be whole again. In each of ROUNDS it frees FREE
 * percent of the pages at random, so that free memory has holes, and reads FILE to fill them with
 * page cache. Then it faults TRIES times for a folio of ORDER with MADV_HUGEPAGE, keeps large ones,
 * drops others; at the end it drops all, and fills the holes again. CHURNERS processes fault, free
 * and fill pipes all the time. Prints one JSON object, with the events of /proc/vmstat during the
 * faults; exits with status 1 if a page has lost its contents.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#include "areas.h"
#include "ticks.h"

#define CHURN_PAGES	2048UL

static uint64_t rng = 88172645463325252ULL;

static size_t pick(size_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng % n;
}

/* ---- Memory in holes */

static uint64_t *pool;		/* page i begins with the word i + 1, or is absent */
static size_t pool_pages;
static unsigned char *kept;	/* per page: 0 freed, 1 kept, or PINNED */

#define PINNED		2

static uint64_t *page_at(uint64_t *area, size_t i) { return area + i * (PAGE / 8); }

static void fill(void)
{
	for (size_t i = 0; i < pool_pages; i++)
		*page_at(pool, i) = i + 1;
}

static void make_pool(size_t pages)
{
	pool_pages = pages;
	pool = map(pages * PAGE, MADV_NOHUGEPAGE);
	kept = calloc(pages, 1);
	fill();
}

/*
 * Pins pages in @percent percent of the 2 MiB blocks of physical memory, at most one in each 64 kB.
 */
static void pin_blocks(unsigned int percent)
{
	static unsigned char seen[1 << 20], chosen[1 << 15];
	static struct iovec buffer[MAX_BUFFERS];
	uint64_t *pagemap = calloc(pool_pages, 8);
	unsigned int n = 0;

	for (size_t i = 0; i < sizeof(chosen); i++)
		chosen[i] = pick(100) < percent;
	read_words(open_file("/proc/self/pagemap"), (uintptr_t)pool / PAGE, pagemap, pool_pages);
	for (size_t i = 0; i < pool_pages && n < MAX_BUFFERS; i++) {
		uint64_t pfn = pagemap[i] & ((1ULL << 55) - 1);

		if (pfn / 16 >= sizeof(seen) || !chosen[pfn / PMD_PAGES] || seen[pfn / 16]++)
			continue;
		buffer[n++] = (struct iovec){ page_at(pool, i), PAGE };
		kept[i] = PINNED;
	}
	free(pagemap);
	if (n)
		pin_some(buffer, n);
}

static void make_holes(unsigned int percent)
{
	for (size_t i = 0; i < pool_pages; i++) {
		if (kept[i] == PINNED)
			continue;
		kept[i] = pick(100) >= percent;
		if (!kept[i] && madvise(page_at(pool, i), PAGE, MADV_DONTNEED))
			die("madvise");
	}
}

/*
 * Fills the page cache: reads all of a file or a device. It stays open, because closing a device
 * drops its page cache.
 */
static void fill_cache(const char *path)
{
	static char buffer[1 << 16];
	static int fd = -1;

	if (fd < 0)
		fd = open_file(path);
	check(lseek(fd, 0, SEEK_SET), path);
	while (read(fd, buffer, sizeof(buffer)) > 0)
		;
}

static unsigned long damaged(void)
{
	unsigned long n = 0;

	for (size_t i = 0; i < pool_pages; i++)
		n += kept[i] && *page_at(pool, i) != i + 1;
	return n;
}

/* ---- Interference */

/* Replaces a pipe by a new one that holds four pages: unmovable memory. */
static void fill_pipe(int *ends)
{
	static const char data[PAGE * 4];

	close(ends[0]);
	close(ends[1]);
	if (pipe(ends) || write(ends[1], data, sizeof(data)) != sizeof(data))
		die("pipe");
}

static void churn(void)
{
	uint64_t *area = map(CHURN_PAGES * PAGE, MADV_NOHUGEPAGE);
	int ends[256][2];

	memset(ends, 0xff, sizeof(ends));
	for (;;) {
		size_t i = pick(CHURN_PAGES);

		*page_at(area, i) = 1;
		madvise(page_at(area, pick(CHURN_PAGES)), PAGE, MADV_DONTNEED);
		if (!pick(32))
			fill_pipe(ends[pick(256)]);
	}
}

static void start_churners(int n)
{
	for (int i = 0; i < n; i++) {
		rng += i;
		if (fork())
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		churn();
	}
}

/* ---- The large folios */

static const char *const events[] = {
	"compact_migrate_scanned", "compact_free_scanned", "compact_isolated", "compact_stall",
	"compact_fail", "compact_success", "compact_daemon_migrate_scanned",
	"compact_daemon_free_scanned", "pgmigrate_success", "pgscan_direct", "pgscan_kswapd",
	"pswpout",
};

#define EVENTS		(sizeof(events) / sizeof(*events))

static long happened[EVENTS];

/* Adds (@sign 1) or subtracts (-1) the counters of /proc/vmstat, to get the events in between. */
static void add_events(int sign)
{
	FILE *file = fopen("/proc/vmstat", "r");
	char name[64];
	long value;

	while (fscanf(file, "%63s %ld", name, &value) == 2)
		for (size_t i = 0; i < EVENTS; i++)
			if (!strcmp(name, events[i]))
				happened[i] += sign * value;
	fclose(file);
}

static int order_at(const void *page)
{
	unsigned long pages[MAX_ORDER + 2] = {0};
	int order = MAX_ORDER;

	folio_histogram(page, PAGE, pages);
	while (order && !pages[order])
		order--;
	return order;
}

static int earlier(const void *a, const void *b)
{
	return (*(const uint64_t *)a > *(const uint64_t *)b) -
	       (*(const uint64_t *)a < *(const uint64_t *)b);
}

static uint64_t *ticks;
static size_t nr_ticks, large;

static void try(uint64_t *page, int order)
{
	uint64_t begin = ticks_now();

	*(volatile uint64_t *)page = 1;
	ticks[nr_ticks++] = ticks_now() - begin;
	if (order_at(page) >= order)
		large++;
	else
		check(madvise(page, PAGE << order, MADV_DONTNEED), "madvise");
}

static void one_round(int order, size_t tries, unsigned int percent, const char *file)
{
	size_t bytes = PAGE * tries << order;
	uint64_t *area = map(bytes, MADV_HUGEPAGE);

	fill();
	make_holes(percent);
	if (file)
		fill_cache(file);
	add_events(-1);
	for (size_t i = 0; i < tries; i++)
		try(page_at(area, i << order), order);
	add_events(1);
	/* This also frees the page tables; a PMD with a page table gets no huge page. */
	check(munmap(area, bytes), "munmap");
}

static void print_results(void)
{
	uint64_t sum = 0;

	qsort(ticks, nr_ticks, sizeof(*ticks), earlier);
	for (size_t i = 0; i < nr_ticks; i++)
		sum += ticks[i];
	printf("{\"tries\": %zu, \"large\": %zu, \"ticks\": %lu, \"ticks_median\": %lu, "
	       "\"ticks_99\": %lu, \"ticks_max\": %lu, ", nr_ticks, large, sum,
	       ticks[nr_ticks / 2], ticks[nr_ticks * 99 / 100], ticks[nr_ticks - 1]);
	for (size_t i = 0; i < EVENTS; i++)
		printf("\"%s\": %ld, ", events[i], happened[i]);
	printf("\"damaged\": %lu}\n", damaged());
}

int main(int argc, char **argv)
{
	unsigned long arg[8];

	if (argc < 9) {
		fprintf(stderr,
			"usage: highalloc MIB FREE PINNED ORDER TRIES ROUNDS CHURNERS SEED "
			"[FILE]\n");
		return 2;
	}
	for (int i = 0; i < 8; i++)
		arg[i] = strtoul(argv[i + 1], NULL, 0);
	rng ^= arg[7] << 32;
	ticks = calloc(arg[4] * arg[5], sizeof(*ticks));
	make_pool(arg[0] * 256);
	pin_blocks(arg[2]);
	start_churners(arg[6]);
	for (unsigned long i = 0; i < arg[5]; i++)
		one_round(arg[3], arg[4], arg[1], argv[9]);
	print_results();
	return damaged() != 0;
}
