// SPDX-License-Identifier: GPL-2.0
/*
 * nodes OP ARGUMENT... OP ARGUMENT...: fills NUMA nodes, then maps and touches memory and reports
 * its placement. "touch*" and "collapse" print one JSON object: ticks (CPU time of this process in
 * ns, under icount instructions), pages of each node by folio order, changed counters of
 * /proc/vmstat, free pages of node 0, words with wrong contents.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <time.h>

#include "areas.h"
#include "words.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif
#define MIB		(1UL << 20)
#define MAX_NODES	8
#define MAX_LINES	512

static char *area;		/* the area that the last "map" has mapped */
static size_t area_bytes;

static size_t mib(const char *arg) { return strtoul(arg, NULL, 0) * MIB; }

static void bind(void *p, size_t bytes, int mode, unsigned long mask)
{
	check(syscall(SYS_mbind, p, bytes, mode, &mask, 64, 0), "mbind");
}

static volatile uint64_t *word(const char *p, size_t page)
{
	return (volatile uint64_t *)(p + page * PAGE);
}

static uint64_t stamp(size_t page) { return page << 1 ^ 0x5a5a5a5b; }

static size_t step = 1;		/* one page in this many is touched */

static void write_some(char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes / PAGE; i += step)
		*word(p, i) = stamp(i);
}

/* Returns the free pages of a node above the low watermarks of its zones. */
static long left(int wanted)
{
	FILE *file = fopen("/proc/zoneinfo", "r");
	char text[128];
	long free = 0, low, sum = 0;
	int node = 0;

	check(!file, "/proc/zoneinfo");
	while (fgets(text, sizeof(text), file)) {
		sscanf(text, "Node %d,", &node);
		sscanf(text, " pages free %ld", &free);
		if (node == wanted && sscanf(text, " low %ld", &low) == 1 && free > low)
			sum += free - low;
	}
	fclose(file);
	return sum;
}

/* Returns bytes for arguments MIB NODE; for a negative MIB, the node's free memory less MIB. */
static size_t size_on(char **arg)
{
	long bytes = strtol(arg[0], NULL, 0) * MIB;

	if (bytes < 0)
		bytes += left(atoi(arg[1])) * PAGE;
	return bytes;
}

/* Allocates base pages, which can be swapped out, on one node. */
static struct iovec hold(char **arg)
{
	size_t bytes = size_on(arg);
	char *p = map(bytes, MADV_NOHUGEPAGE);

	bind(p, bytes, MPOL_BIND, 1UL << atoi(arg[1]));
	write_some(p, bytes);
	return (struct iovec){ p, bytes };
}

static void op_hold(char **arg) { hold(arg); }

static void pin(char *p, size_t bytes)
{
	pin_some(&(struct iovec){ p, bytes }, 1);
}

static void op_pin(char **arg)
{
	struct iovec held = hold(arg);

	pin_some(&held, 1);
}

/*
 * Fills the page cache of one node: reads the next part of a file, or of a device. The file stays
 * open, as closing a device drops its page cache.
 */
static void op_cache(char **arg)
{
	unsigned long mask = 1UL << atoi(arg[1]);
	static char buffer[1 << 16];
	static size_t next;
	size_t end = next + size_on(arg);
	int fd = open_file(arg[2]);

	check(syscall(SYS_set_mempolicy, MPOL_BIND, &mask, 64), "set_mempolicy");
	for (; next < end; next += sizeof(buffer))
		check(pread(fd, buffer, sizeof(buffer), next) != sizeof(buffer), arg[2]);
	check(syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0), "set_mempolicy");
}

/* Allocates memory, pins one page in STEP, and frees the others: they cannot form larger blocks. */
static void op_crumbs(char **arg)
{
	static struct iovec crumbs[MAX_BUFFERS];
	struct iovec held = hold(arg);
	size_t pages = held.iov_len / PAGE, kept = strtoul(arg[2], NULL, 0), n = 0;
	char *p = held.iov_base;

	for (size_t i = 0; i < pages; i += kept) {
		check(madvise(p + (i + 1) * PAGE, (kept - 1) * PAGE, MADV_DONTNEED), "madvise");
		crumbs[n++] = (struct iovec){ p + i * PAGE, PAGE };
		if (n == MAX_BUFFERS || i + kept >= pages) {
			pin_some(crumbs, n);
			n = 0;
		}
	}
}

static void op_map(char **arg)
{
	area_bytes = mib(arg[0]);
	area = map(area_bytes, atoi(arg[1]));
}

static void op_share(char **arg)
{
	area_bytes = mib(arg[0]);
	area = map_flags(area_bytes, atoi(arg[1]), MAP_SHARED);
}

static void op_advise(char **arg)
{
	check(madvise(area, area_bytes, atoi(arg[0])), "madvise");
}

static void op_write(char **arg)
{
	(void)arg;
	write_some(area, area_bytes);
}

static void op_mbind(char **arg)
{
	bind(area, area_bytes, atoi(arg[0]), strtoul(arg[1], NULL, 0));
}

static void op_set_mempolicy(char **arg)
{
	unsigned long mask = strtoul(arg[1], NULL, 0);

	check(syscall(SYS_set_mempolicy, atoi(arg[0]), &mask, 64), "set_mempolicy");
}

struct line {
	char key[48];
	unsigned long value;
};

static struct line before[MAX_LINES], after[MAX_LINES];

/* Reads all of /proc/vmstat. */
static void read_vmstat(struct line *lines)
{
	FILE *file = fopen("/proc/vmstat", "r");

	check(!file, "/proc/vmstat");
	for (struct line *l = lines; fscanf(file, "%47s %lu", l->key, &l->value) == 2; l++)
		;
	fclose(file);
}

/* Prints the counters of /proc/vmstat that have changed, and by how much. */
static void print_vmstat(void)
{
	for (size_t i = 0; i < MAX_LINES; i++)
		if (strncmp(after[i].key, "nr_", 3) && after[i].value != before[i].value)
			printf("\"%s\": %lu, ", after[i].key, after[i].value - before[i].value);
}

static uint64_t cpu_time(void)
{
	struct timespec t;

	check(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), "clock_gettime");
	return t.tv_sec * 1000000000UL + t.tv_nsec;
}

/* Finds the node of each page, a negative errno for an absent page. */
static void find_nodes(int *node, size_t pages)
{
	void *addr[PMD_PAGES];

	for (size_t i = 0; i < pages; i += PMD_PAGES) {
		for (size_t j = 0; j < PMD_PAGES; j++)
			addr[j] = area + (i + j) * PAGE;
		check(syscall(SYS_move_pages, 0, PMD_PAGES, addr, NULL, node + i, 0),
		      "move_pages");
	}
}

/*
 * Prints the pages of each node by folio order. A folio has one node, so runs of pages with one
 * node hold whole folios.
 */
static void print_nodes(void)
{
	size_t pages = area_bytes / PAGE, run;
	unsigned long of[MAX_NODES][MAX_ORDER + 2] = {{0}};
	int *node = calloc(pages, sizeof(*node));

	check(!node, "calloc");
	find_nodes(node, pages);
	for (size_t i = 0; i < pages; i += run) {
		for (run = 1; i + run < pages && node[i + run] == node[i]; run++)
			;
		if (node[i] >= 0)
			folio_histogram(area + i * PAGE, run * PAGE, of[node[i]]);
	}
	free(node);
	for (int n = 0; n < MAX_NODES; n++)
		for (int order = 0; order <= MAX_ORDER; order++)
			if (of[n][order])
				printf("\"node%d_order%d\": %lu, ", n, order, of[n][order]);
}

static unsigned long mismatches(void)
{
	unsigned long found = 0;

	for (size_t i = 0; i < area_bytes / PAGE; i++)
		found += *word(area, i) != (i % step ? 0 : stamp(i));
	return found;
}

static bool is_folio(const char *p, size_t pages)
{
	unsigned long of[MAX_ORDER + 2] = {0};

	folio_histogram(p, pages * PAGE, of);
	for (int order = 0; order <= MAX_ORDER; order++)
		if (of[order] == pages && 1UL << order == pages)
			return true;
	return false;
}

/*
 * Writes one page in each block of @step pages, until a block gets no large folio. The events of
 * that last write are not counted.
 */
static void write_while_large(char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes / PAGE; i += step) {
		read_vmstat(after);
		*word(p, i) = stamp(i);
		if (!is_folio(p + i * PAGE, step))
			break;
	}
}

static void measure(void (*touch)(char *p, size_t bytes))
{
	uint64_t begin;

	read_vmstat(before);
	begin = cpu_time();
	touch(area, area_bytes);
	begin = cpu_time() - begin;
	if (touch != write_while_large)
		read_vmstat(after);
	printf("{");
	print_vmstat();
	print_nodes();
	write_some(area, area_bytes);
	printf("\"left\": %ld, \"ticks\": %lu, \"mismatches\": %lu}\n", left(0), begin,
	       mismatches());
}

static void op_touch(char **arg)
{
	step = strtoul(arg[0], NULL, 0);
	measure(write_some);
}

static void op_touch_large(char **arg)
{
	step = strtoul(arg[0], NULL, 0);
	measure(write_while_large);
}

static void op_touch_pinned(char **arg)
{
	(void)arg;
	measure(pin);
}

/* Collapses an area to huge pages, until memory is short (ENOMEM). */
static void collapse(char *p, size_t bytes)
{
	check(madvise(p, bytes, MADV_COLLAPSE) && errno != ENOMEM, "collapse");
}

static void op_collapse(char **arg)
{
	(void)arg;
	measure(collapse);
}

static const struct op ops[] = {
	{ "hold", 2, "MIB NODE", op_hold },
	{ "pin", 2, "MIB NODE", op_pin },
	{ "crumbs", 3, "MIB NODE STEP", op_crumbs },
	{ "cache", 3, "MIB NODE FILE", op_cache },
	{ "map", 2, "MIB ADVICE", op_map },
	{ "share", 2, "MIB ADVICE", op_share },
	{ "advise", 1, "ADVICE", op_advise },
	{ "write", 0, "", op_write },
	{ "mbind", 2, "MODE NODES", op_mbind },
	{ "set_mempolicy", 2, "MODE NODES", op_set_mempolicy },
	{ "touch", 1, "STEP", op_touch },
	{ "touch_large", 1, "PAGES", op_touch_large },
	{ "touch_pinned", 0, "", op_touch_pinned },
	{ "collapse", 0, "", op_collapse },
	{ "sh", 1, "COMMAND", op_sh },
	{ NULL },
};

int main(int argc, char **argv) { return run_words(ops, argc, argv); }
