// SPDX-License-Identifier: GPL-2.0
/*
 * rewrite CASE [MIB [ROUNDS]]: each round maps new memory, prepares it as CASE says, writes to
 * pages, and verifies every written word. Prints one JSON object: the ticks of the median round
 * (instructions under icount), and of the last round the faults and the growth of private memory
 * in kB.
 *
 *	parent	writes all pages after a forked child has exited
 *	child	writes all pages in a child that shares them with its parent
 *	sparse	writes one page in 64 kB in a child that shares all pages with its parent
 *	read	writes all pages after reading all of them
 *	few	writes one page in 64 kB after reading all pages
 *	fresh	writes all pages without a preparation
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basics.h"
#include "ticks.h"

#define PMD		(2UL << 20)
#define MAX_ROUNDS	99

static volatile uint64_t *area;
static size_t nr_pages;
static struct { uint64_t ticks; unsigned long faults, kb; } *result;	/* shared with children */

static volatile uint64_t *word(size_t page) { return area + page * (PAGE / 8); }

static void write_all(size_t step, uint64_t value)
{
	for (size_t i = 0; i < nr_pages; i += step)
		*word(i) = value + i;
}

/* Checks that the first word of page i is @value + i in one page of @step, else @others + i. */
static void verify(size_t step, uint64_t value, uint64_t others)
{
	for (size_t i = 0; i < nr_pages; i++) {
		uint64_t want = (i % step ? others : value) + i;

		if (*word(i) == want)
			continue;
		fprintf(stderr, "page %zu holds %#lx, not %#lx\n", i, *word(i), want);
		exit(1);
	}
}

static unsigned long faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

/* Returns private memory in kB. Uses no stdio, as its buffer would count. */
static unsigned long private_kb(void)
{
	static char text[4096];
	int fd = open("/proc/self/smaps_rollup", O_RDONLY);
	const char *clean, *dirty;

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0 || close(fd))
		die("smaps_rollup");
	clean = strstr(text, "Private_Clean:");
	dirty = strstr(text, "Private_Dirty:");
	if (!clean || !dirty)
		die("smaps_rollup has other lines");
	return strtoul(clean + 14, NULL, 10) + strtoul(dirty + 14, NULL, 10);
}

static void measure(size_t step, uint64_t value)
{
	unsigned long before = faults(), kb = private_kb();
	uint64_t begin = ticks_now();

	write_all(step, value);
	result->ticks = ticks_now() - begin;
	result->faults = faults() - before;
	result->kb = private_kb() - kb;
}

/* Runs a function in a child process, and exits with an error if the child fails. */
static void in_child(void (*what)(size_t step), size_t step)
{
	pid_t pid = fork();
	int status;

	if (pid < 0)
		die("fork");
	if (!pid) {
		what(step);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status) {
		fprintf(stderr, "the child ended with status %#x\n", status);
		exit(1);
	}
}

static void nothing(size_t step) { (void)step; }

static void measured_writes(size_t step)
{
	measure(step, 2000000);
	verify(step, 2000000, 1000000);
}

static void run_parent(void)
{
	write_all(1, 1000000);
	in_child(nothing, 1);
	measure(1, 2000000);
	verify(1, 2000000, 0);
}

static void run_forked(size_t step)
{
	write_all(1, 1000000);
	in_child(measured_writes, step);
	verify(1, 1000000, 0);
}

static void run_child(void) { run_forked(1); }
static void run_sparse(void) { run_forked(16); }

/* Reads pages that were not written (all of them if @step is 0), and checks that they hold 0. */
static void read_empty(size_t step)
{
	for (size_t i = 0; i < nr_pages; i++)
		if ((!step || i % step) && *word(i))
			exit(1);
}

static void run_read(void)
{
	read_empty(0);
	measure(1, 1000000);
	verify(1, 1000000, 0);
}

static void run_few(void)
{
	read_empty(0);
	measure(16, 1000000);
	read_empty(16);
}

static void run_fresh(void)
{
	measure(1, 1000000);
	verify(1, 1000000, 0);
}

static const struct { const char *name; void (*run)(void); } cases[] = {
	{ "parent", run_parent },
	{ "child", run_child },
	{ "sparse", run_sparse },
	{ "read", run_read },
	{ "few", run_few },
	{ "fresh", run_fresh },
};

static void *map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

/* Runs one round in new memory that is aligned to PMD size. */
static void run_round(void (*run)(void))
{
	size_t bytes = nr_pages * PAGE + PMD;
	char *p = map(bytes);

	area = (void *)(((uintptr_t)p + PMD - 1) & ~(PMD - 1));
	run();
	if (munmap(p, bytes))
		die("munmap");
}

static int compare(const void *a, const void *b)
{
	return *(uint64_t *)a < *(uint64_t *)b ? -1 : *(uint64_t *)a > *(uint64_t *)b;
}

static void (*find(const char *name))(void)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		if (!strcmp(name, cases[i].name))
			return cases[i].run;
	fprintf(stderr, "unknown case %s\n", name);
	exit(2);
}

int main(int argc, char **argv)
{
	void (*run)(void) = find(argc > 1 ? argv[1] : "");
	int rounds = argc > 3 ? atoi(argv[3]) : 3;
	uint64_t ticks[MAX_ROUNDS];

	nr_pages = (argc > 2 ? strtoul(argv[2], NULL, 10) : 64) * 256;
	if (rounds < 1 || rounds > MAX_ROUNDS || !nr_pages)
		find("");
	result = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (result == MAP_FAILED)
		die("mmap");
	for (int i = 0; i < rounds; i++) {
		run_round(run);
		ticks[i] = result->ticks;
	}
	qsort(ticks, rounds, sizeof(*ticks), compare);
	printf("{\"case\": \"%s\", \"ticks\": %lu, \"faults\": %lu, \"kb\": %lu}\n",
	       argv[1], ticks[rounds / 2], result->faults, result->kb);
	return 0;
}
