// SPDX-License-Identifier: GPL-2.0
/*
 * touch PATTERN [MIB [ROUNDS]]: touches fresh anonymous memory in a pattern, each round afresh, and
 * verifies every page. Prints one JSON object: ticks (under icount instructions) of a usual round;
 * faults, memory and pages by folio order of the last one. Patterns that change over report each
 * half.
 *
 * A usual round is the mean of rounds within 2 % of the median. The first rounds find other free
 * lists than the later ones. The remaining noise is the timer, which interrupts some short rounds
 * and others not, at 0.5 % of 2 million ticks.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "basics.h"
#include "folios.h"
#include "ticks.h"

#define PMD		(2UL << 20)
#define STREAMS		4

struct area {
	volatile uint64_t *page;	/* pointer to words; page i begins at word i * WORDS */
	size_t pages;
};

#define WORDS		(PAGE / sizeof(uint64_t))

static unsigned long touched;
static unsigned char seen[1 << 20];	/* pages touched by random_quarter and skewed */
static uint64_t rng = SEED;

static void touch(struct area a, size_t i)
{
	a.page[i * WORDS] = i ^ 0x5a5a5a5a;
	touched++;
}

static void stride(struct area a, size_t step)
{
	for (size_t i = 0; i < a.pages; i += step)
		touch(a, i);
}

static void forward(struct area a) { stride(a, 1); }
static void every_32k(struct area a) { stride(a, 8); }
static void every_64k(struct area a) { stride(a, 16); }
static void every_128k(struct area a) { stride(a, 32); }

static void backward(struct area a)
{
	for (size_t i = a.pages; i--;)
		touch(a, i);
}

static void streams(struct area a)
{
	size_t part = a.pages / STREAMS;

	for (size_t i = 0; i < part; i++)
		for (size_t s = 0; s < STREAMS; s++)
			touch(a, s * part + i);
}

static void *one_thread(void *arg)
{
	struct area a = *(struct area *)arg;

	for (size_t i = 0; i < a.pages; i++)
		a.page[i * WORDS] = i ^ 0x5a5a5a5a;
	return NULL;
}

/*
 * Lets each thread touch its own part of the area. The threads do not count pages; their sum is
 * added afterwards.
 */
static void threads(struct area a)
{
	struct area part[STREAMS];
	pthread_t id[STREAMS];

	for (int s = 0; s < STREAMS; s++) {
		part[s].pages = a.pages / STREAMS;
		part[s].page = a.page + s * part[s].pages * WORDS;
		if (pthread_create(&id[s], NULL, one_thread, &part[s]))
			die("pthread_create");
	}
	for (int s = 0; s < STREAMS; s++)
		pthread_join(id[s], NULL);
	touched += a.pages;
}

static void random_quarter(struct area a)
{
	for (size_t n = 0; n < a.pages / 4;) {
		size_t i = next_random(&rng, a.pages);

		if (!seen[i]) {
			touch(a, i);
			seen[i] = 1;
			n++;
		}
	}
}

/* Returns element @i of a pseudo-random permutation of 0 to @n - 1. @n is a power of two. */
static size_t shuffled(size_t i, size_t n)
{
	const int half = __builtin_ctzl(n) / 2;

	i = (i * 0x9e3779b1) & (n - 1);
	i = ((i ^ i >> half) * 0x85ebca6b) & (n - 1);
	return i ^ i >> half;
}

static void random_all(struct area a)
{
	for (size_t i = 0; i < a.pages; i++)
		touch(a, shuffled(i, a.pages));
}

static void random_blocks(struct area a)
{
	for (size_t i = 0; i < a.pages; i++)
		touch(a, shuffled(i / 16, a.pages / 16) * 16 + i % 16);
}

/* Touches pieces of 32 kB in a random order. */
static void random_32k(struct area a)
{
	for (size_t i = 0; i < a.pages; i++)
		touch(a, shuffled(i / 8, a.pages / 8) * 8 + i % 8);
}

/* Touches 16 MB in full, then 16 MB with one page in 64 kB, and so on in turn. */
static void in_turn(struct area a)
{
	for (size_t i = 0; i < a.pages; i++)
		if (i / 4096 % 2 == 0 || i % 16 == 0)
			touch(a, i);
}

/* Touches 1 to 20 pages, skips 1 to 20, and so on at random. */
static void clusters(struct area a)
{
	for (size_t i = 0; i < a.pages; i += 1 + next_random(&rng, 20))
		for (size_t n = 1 + next_random(&rng, 20); n && i < a.pages; n--)
			touch(a, i++);
}

static void even_odd(struct area a)
{
	for (size_t i = 0; i < a.pages; i += 2)
		touch(a, i);
	for (size_t i = 1; i < a.pages; i += 2)
		touch(a, i);
}

/* Touches a quarter of the pages at random, low addresses more often. */
static void skewed(struct area a)
{
	for (size_t n = 0; n < a.pages / 4;) {
		size_t u = next_random(&rng, 1 << 16), i = u * u * a.pages >> 32;

		if (!seen[i]) {
			touch(a, i);
			seen[i] = 1;
			n++;
		}
	}
}

static size_t some, of;		/* the first `some` pages of each `of` */

static void some_of(struct area a)
{
	for (size_t i = 0; i < a.pages; i++)
		if (i % of < some)
			touch(a, i);
}

static const struct pattern {
	const char *name;
	void (*first)(struct area a);
	void (*second)(struct area a);	/* for the second half of the area, or NULL */
} patterns[] = {
	{ "forward", forward },
	{ "backward", backward },
	{ "streams", streams },
	{ "threads", threads },
	{ "brk", forward },
	{ "stack", backward },
	{ "every_32k", every_32k },
	{ "every_64k", every_64k },
	{ "every_128k", every_128k },
	{ "random_quarter", random_quarter },
	{ "random_all", random_all },
	{ "random_blocks", random_blocks },
	{ "random_32k", random_32k },
	{ "in_turn", in_turn },
	{ "clusters", clusters },
	{ "even_odd", even_odd },
	{ "skewed", skewed },
	{ "N_of_M", some_of },
	{ "sparse_dense", every_64k, forward },
	{ "dense_sparse", forward, every_64k },
	{ "malloc", NULL },
};

/* Returns anonymous memory in kB. Uses no stdio, as its buffer would be in the measured heap. */
static unsigned long anon_kb(void)
{
	static char text[4096];
	int fd = open("/proc/self/smaps_rollup", O_RDONLY);
	ssize_t n = read(fd, text, sizeof(text) - 1);
	const char *line = strstr(text, "\nAnonymous:");

	if (n <= 0 || !line || close(fd))
		die("smaps_rollup");
	return strtoul(line + strlen("\nAnonymous:"), NULL, 10);
}

static unsigned long faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

#define MAX_ROUNDS	299

static struct result {
	uint64_t ticks[MAX_ROUNDS];	/* ascending */
	int rounds;
	unsigned long faults, kb;	/* of the last round; kb is the peak */
} results[2];

static void keep(struct result *r, uint64_t ticks, unsigned long nr_faults, unsigned long kb)
{
	int i = r->rounds++;

	for (; i && r->ticks[i - 1] > ticks; i--)
		r->ticks[i] = r->ticks[i - 1];
	r->ticks[i] = ticks;
	r->faults = nr_faults;
	r->kb = kb;
}

static void run(struct result *r, void (*pattern)(struct area a), struct area a)
{
	unsigned long kb = anon_kb(), before = faults();
	uint64_t begin = ticks_now();

	pattern(a);
	uint64_t ticks = ticks_now() - begin;

	keep(r, ticks, faults() - before, anon_kb() - kb);
}

#define BLOCKS		64

/*
 * Allocates and frees large blocks, in which malloc writes only the headers. With this many blocks,
 * each round moves equally many batches of pages between the CPU's free lists and the zone.
 */
static void run_malloc(struct area *a)
{
	static void *block[BLOCKS];
	unsigned long kb = anon_kb(), before = faults();
	uint64_t begin = ticks_now();

	for (int i = 0; i < BLOCKS; i++)
		if (!(block[i] = malloc(a->pages * PAGE)))
			die("malloc");
	uint64_t ticks = ticks_now() - begin;

	unsigned long used = anon_kb() - kb, nr_faults = faults() - before;

	begin = ticks_now();
	for (int i = 0; i < BLOCKS; i++)
		free(block[i]);
	keep(&results[0], ticks + ticks_now() - begin, nr_faults, used);
}

/*
 * Maps memory that is aligned to PMD size. Unmaps that of the round before only afterwards, so that
 * the new memory has a different address.
 */
static void *map_aligned(size_t bytes)
{
	static char *mapped;
	char *p = mmap(NULL, bytes + 2 * PMD, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	if (getenv("TOUCH_MADVISE") && madvise(p, bytes + 2 * PMD, atoi(getenv("TOUCH_MADVISE"))))
		die("madvise");
	if (mapped)
		munmap(mapped, bytes + 2 * PMD);
	mapped = p;
	return (void *)(((uintptr_t)p + PMD - 1) & ~(PMD - 1));
}

static char *heap;

/* Grows the heap by 33 pages at a time, as malloc does, and touches each of the new pages. */
static void grow_heap(struct area a)
{
	for (size_t done = 0; done < a.pages; done += 33) {
		size_t n = a.pages - done < 33 ? a.pages - done : 33;

		if (sbrk(n * PAGE) == (void *)-1)
			die("sbrk");
		for (size_t i = done; i < done + n; i++)
			touch(a, i);
	}
}

static void run_brk(struct area *a)
{
	heap = heap ?: (char *)sbrk(0) + (-(uintptr_t)sbrk(0) & (PMD - 1));
	if (brk(heap))
		die("brk");
	a->page = (void *)heap;
	run(&results[0], grow_heap, *a);
}

/* Touches the stack downwards, page by page, as deep calls do. */
static void run_stack(struct area *a)
{
	a->page = (void *)(((uintptr_t)__builtin_frame_address(0) & ~(PMD - 1)) -
			   a->pages * PAGE);
	madvise((void *)a->page, a->pages * PAGE, MADV_DONTNEED);
	run(&results[0], backward, *a);
}

static void run_mapped(struct area *a, const struct pattern *p)
{
	struct area half = { map_aligned(a->pages * PAGE), a->pages / 2 };

	a->page = half.page;
	if (!p->second) {
		run(&results[0], p->first, *a);
		return;
	}
	run(&results[0], p->first, half);
	half.page += half.pages * WORDS;
	run(&results[1], p->second, half);
}

static void run_once(struct area *a, const struct pattern *p)
{
	memset(seen, 0, sizeof(seen));
	touched = 0;
	if (!strcmp(p->name, "malloc"))
		run_malloc(a);
	else if (!strcmp(p->name, "brk"))
		run_brk(a);
	else if (!strcmp(p->name, "stack"))
		run_stack(a);
	else
		run_mapped(a, p);
}

/* Counts written words that do not hold their index, and other pages that are not zero. */
static unsigned long mismatches(struct area a, size_t part)
{
	unsigned long bad = 0, found = 0;

	for (size_t i = 0; i < a.pages; i++) {
		uint64_t v = a.page[i * WORDS];

		bad += v && v != ((i % part) ^ 0x5a5a5a5a);
		found += v != 0;
	}
	return bad + (found != touched);
}

static void print_pages(struct area a, size_t part)
{
	unsigned long pages[MAX_ORDER + 2] = {0};

	folio_histogram((void *)a.page, a.pages * PAGE, pages);
	printf("\"pages\": {");
	for (int order = 0; order <= MAX_ORDER; order++)
		if (pages[order])
			printf("\"%d\": %lu, ", order, pages[order]);
	printf("\"none\": %lu}, \"touched\": %lu, \"mismatches\": %lu, ", pages[MAX_ORDER + 1],
	       touched, mismatches(a, part));
}

static uint64_t usual(const struct result *r)
{
	uint64_t median = r->ticks[r->rounds / 2], sum = 0, n = 0;

	for (int i = 0; i < r->rounds; i++) {
		if (r->ticks[i] < median - median / 50 || r->ticks[i] > median + median / 50)
			continue;
		sum += r->ticks[i];
		n++;
	}
	return sum / n;
}

static void print_result(const char *prefix, const struct result *r)
{
	printf("\"%sticks\": %lu, \"%sfaults\": %lu, \"%skb\": %lu, ", prefix,
	       usual(r), prefix, r->faults, prefix, r->kb);
}

static const struct pattern *find(const char *name)
{
	size_t n = sizeof(patterns) / sizeof(*patterns);

	if (sscanf(name, "%zu_of_%zu", &some, &of) == 2 && of)
		name = "N_of_M";
	for (size_t i = 0; i < n; i++)
		if (!strcmp(name, patterns[i].name) && (of || patterns[i].first != some_of))
			return &patterns[i];
	fprintf(stderr, "usage: touch PATTERN [MIB [ROUNDS]]\npatterns:");
	for (size_t i = 0; i < n; i++)
		fprintf(stderr, " %s", patterns[i].name);
	fprintf(stderr, "\n");
	exit(2);
}

int main(int argc, char **argv)
{
	const struct rlimit stack = { RLIM_INFINITY, RLIM_INFINITY };
	const struct pattern *p = find(argc > 1 ? argv[1] : "");
	size_t mib = argc > 2 ? strtoul(argv[2], NULL, 10) : 64;
	int rounds = argc > 3 ? atoi(argv[3]) : 1;
	struct area a = { NULL, (mib << 20) / PAGE };
	size_t part = p->second ? a.pages / 2 : a.pages;

	if (rounds < 1 || rounds > MAX_ROUNDS || !a.pages)
		find("");
	setrlimit(RLIMIT_STACK, &stack);
	memset(seen, 1, sizeof(seen));	/* so that its own faults are not measured */
	while (rounds--)
		run_once(&a, p);
	if (!strcmp(p->name, "threads"))
		part /= STREAMS;
	printf("{\"pattern\": \"%s\", \"mib\": %zu, ", p->name, mib);
	print_result(p->second ? "first_" : "", &results[0]);
	if (p->second)
		print_result("second_", &results[1]);
	if (a.page)
		print_pages(a, part);
	printf("\"rss_kb\": %lu}\n", anon_kb());
	return a.page && mismatches(a, part);
}
