// SPDX-License-Identifier: GPL-2.0
/*
 * keep SECONDS THREADS [PAGES]: pages that are written after MADV_FREE must stay. Each thread
 * writes, frees, rewrites and verifies pages of its own at random, pages some of them out, drops
 * half of them at once (by default they have whole page tables), splits their area, and forks
 * children that verify their inherited pages and then act like their parents. A freed page may hold
 * its old data or zeroes, and nothing else.
 *
 * A child writes to pages before it frees them, so that they are its own. Linux 6.12 loses pages of
 * the parent otherwise: one that was read back from zram is clean in memory and nowhere else, and
 * MADV_FREE by the child lets reclaim drop it. With SHARED in the environment children do free
 * shared pages.
 *
 * Prints one JSON object; exits with status 1 if a page held anything else. The caller switches
 * policies and takes memory.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "basics.h"

#define MAX_PAGES	2048UL

enum { EMPTY, WRITTEN, FREED };

static atomic_ulong mismatches, writes, frees, discards, drops, children;
static size_t pages = MAX_PAGES;	/* number of pages of each thread */
static time_t deadline;

struct state {
	uint64_t rng;
	uint64_t serial;
	int is_child;
	unsigned char *area;
	unsigned char what[MAX_PAGES];
	uint64_t stamp[MAX_PAGES];
};

/* Returns the first or the last word of a page; both are checked, to detect a half-written page. */
static volatile uint64_t *word(struct state *s, size_t page, int last)
{
	return (uint64_t *)(s->area + page * PAGE + (last ? PAGE - 8 : 0));
}

static void write_page(struct state *s, size_t page)
{
	uint64_t stamp = ++s->serial << 16 | page;

	*word(s, page, 0) = stamp;
	*word(s, page, 1) = stamp;
	s->what[page] = WRITTEN;
	s->stamp[page] = stamp;
	writes++;
}

static void check(struct state *s, size_t page)
{
	uint64_t a = *word(s, page, 0), b = *word(s, page, 1);
	int what = s->what[page];

	if (what == WRITTEN ? a != s->stamp[page] || b != s->stamp[page] :
	    what == EMPTY ? a || b :
	    (a && a != s->stamp[page]) || (b && b != s->stamp[page])) {
		mismatches++;
		fprintf(stderr, "page %zu is %d: %lx %lx, not %lx\n", page, what, a, b,
			s->stamp[page]);
	}
	if (what == FREED && !a)
		discards++;
}

static void advise(struct state *s, size_t first, size_t n, int advice)
{
	if (madvise(s->area + first * PAGE, n * PAGE, advice))
		die("madvise");
}

static void free_some(struct state *s, size_t first, size_t n)
{
	advise(s, first, n, MADV_FREE);
	for (size_t i = first; i < first + n; i++)
		if (s->what[i] == WRITTEN)
			s->what[i] = FREED;
	frees++;
}

/* Drops half of the area, so whole page tables become empty; some kernels free them, too. */
static void drop_half(struct state *s)
{
	size_t first = next_random(&s->rng, pages / 2);

	advise(s, first, pages / 2, MADV_DONTNEED);
	memset(s->what + first, EMPTY, pages / 2);
	drops++;
}

/* Writes immediately to about half of the pages that have just been freed. */
static void rewrite_some(struct state *s, size_t first, size_t n)
{
	for (size_t i = first; i < first + n; i++)
		if (next_random(&s->rng, 2))
			write_page(s, i);
}

static void write_some(struct state *s, size_t first, size_t n)
{
	for (size_t i = first; i < first + n; i++)
		write_page(s, i);
}

/* Makes pages read-only and writable again, which splits the VMA and merges it. */
static void split(struct state *s, size_t first, size_t n)
{
	if (mprotect(s->area + first * PAGE, n * PAGE, PROT_READ) ||
	    mprotect(s->area + first * PAGE, n * PAGE, PROT_READ | PROT_WRITE))
		die("mprotect");
}

static void one_step(struct state *s)
{
	size_t first = next_random(&s->rng, pages), n = 1 + next_random(&s->rng, 128);

	if (n > pages - first)
		n = pages - first;
	if (!next_random(&s->rng, 100)) {
		drop_half(s);
		return;
	}
	switch (next_random(&s->rng, 8)) {
	case 0:
	case 1:
	case 2:
		if (s->is_child)
			write_some(s, first, n);
		free_some(s, first, n);
		rewrite_some(s, first, n);
		break;
	case 3:
		write_some(s, first, n);
		break;
	case 4:
		advise(s, first, n, MADV_PAGEOUT);
		break;
	case 5:
		split(s, first, n);
		break;
	default:
		for (size_t i = first; i < first + n; i++)
			check(s, i);
	}
}

static void check_all(struct state *s)
{
	for (size_t i = 0; i < pages; i++)
		check(s, i);
}

static void inherit(struct state *s)
{
	unsigned long before = mismatches;
	pid_t pid = fork();
	int status;

	if (!pid) {
		s->is_child = !getenv("SHARED");
		check_all(s);
		for (int i = 0; i < 50; i++)
			one_step(s);
		check_all(s);
		_exit(mismatches != before);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		die("fork");
	mismatches += !!status;
	children++;
}

static void *work(void *arg)
{
	struct state *s = arg;

	s->area = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (s->area == MAP_FAILED)
		die("mmap");
	do {
		for (int i = 0; i < 200; i++)
			one_step(s);
		inherit(s);
	} while (time(NULL) < deadline);
	check_all(s);
	return NULL;
}

int main(int argc, char **argv)
{
	int seconds = argc > 2 ? atoi(argv[1]) : 0, threads = argc > 2 ? atoi(argv[2]) : 0;

	if (argc > 3)
		pages = strtoul(argv[3], NULL, 0);
	if (seconds < 1 || threads < 1 || pages < 2 || pages > MAX_PAGES) {
		fprintf(stderr, "usage: keep SECONDS THREADS [PAGES]\n");
		return 2;
	}
	pthread_t id[threads];

	deadline = time(NULL) + seconds;
	for (int i = 0; i < threads; i++) {
		struct state *s = calloc(1, sizeof(*s));

		s->rng = SEED + i * 7919;
		if (pthread_create(&id[i], NULL, work, s))
			die("pthread_create");
	}
	for (int i = 0; i < threads; i++)
		pthread_join(id[i], NULL);
	printf("{\"mismatches\": %lu, \"writes\": %lu, \"frees\": %lu, \"discards\": %lu,"
	       " \"drops\": %lu, \"children\": %lu}\n", mismatches, writes, frees, discards, drops,
	       children);
	return mismatches || !frees;
}
