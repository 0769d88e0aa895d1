// SPDX-License-Identifier: GPL-2.0
/*
 * lazy ADVICE THREADS ROUNDS CHUNK_KB CHUNKS [FREE_PERCENT [IDLE_CHUNKS]]: an allocator under load,
 * like that of ebizzy. Each thread has chunks, a part of them free. It repeatedly takes a free one,
 * writes to each page, and frees another one with ADVICE: free (MADV_FREE), dontneed
 * (MADV_DONTNEED) or keep (nothing). Idle chunks are freed at the beginning and stay free.
 *
 * With malloc, chunks come from malloc() and go to free(), all free ones at once, followed by 250
 * ms of sleep: an allocator that keeps free memory for some time gives it back in such pauses.
 * Ticks are CPU time then.
 *
 * With SAMPLE_US in the environment, another process samples the lazily freed memory at that
 * interval in microseconds. Prints one JSON object. Exits with status 1 if a page in use has lost
 * its data.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "basics.h"
#include "ticks.h"


static int advice = MADV_FREE, threads, rounds, chunks, free_percent = 50, idle;
static bool use_malloc;
static size_t chunk;
static pthread_barrier_t start;

struct worker {
	pthread_t id;
	uint64_t rng;
	uint64_t begin, end;	/* ticks at the begin and end of the measured part */
	unsigned long mismatches;
	struct {
		char *at;
		bool used;
	} chunk[];
};

static uint64_t *word(const struct worker *w, int i, size_t offset)
{
	return (uint64_t *)(w->chunk[i].at + offset);
}

static void take(struct worker *w, int i)
{
	if (use_malloc)
		w->chunk[i].at = malloc(chunk);
	if (!w->chunk[i].at)
		die("malloc");
	for (size_t at = 0; at < chunk; at += PAGE)
		*word(w, i, at) = (uintptr_t)word(w, i, at);
	w->chunk[i].used = true;
}

static void give_back(struct worker *w, int i)
{
	for (size_t at = 0; at < chunk; at += PAGE)
		w->mismatches += *word(w, i, at) != (uintptr_t)word(w, i, at);
	if (use_malloc)
		free(w->chunk[i].at);
	else if (advice >= 0 && madvise(w->chunk[i].at, chunk, advice))
		die("madvise");
	w->chunk[i].used = false;
}

static int pick(struct worker *w, bool used)
{
	int i;

	do
		i = next_random(&w->rng, chunks);
	while (w->chunk[i].used != used);
	return i;
}

/* Takes and frees the idle chunks, then takes all others, and frees free_percent of these. */
static void fill(struct worker *w)
{
	for (int i = chunks; i < chunks + idle; i++)
		take(w, i);
	for (int i = chunks; i < chunks + idle; i++)
		give_back(w, i);
	for (int i = 0; i < chunks; i++)
		take(w, i);
	for (int i = 0; i < chunks * free_percent / 100; i++)
		give_back(w, i);
}

static void repeat(struct worker *w, int times)
{
	int at_once = use_malloc ? chunks * free_percent / 100 : 1;

	while (times--) {
		for (int i = 0; i < at_once; i++)
			take(w, pick(w, false));
		for (int i = 0; i < at_once; i++)
			give_back(w, pick(w, true));
		if (use_malloc)
			usleep(250000);
	}
}

static uint64_t ticks(void)
{
	struct timespec cpu;

	if (!use_malloc)
		return ticks_now();
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
	return cpu.tv_sec * 1000000000UL + cpu.tv_nsec;
}

static void *work(void *arg)
{
	struct worker *w = arg;

	fill(w);
	repeat(w, rounds / 4);	/* reach a steady state */
	pthread_barrier_wait(&start);
	w->begin = ticks();
	repeat(w, rounds);
	w->end = ticks();
	return NULL;
}

static struct worker *new_worker(int i)
{
	struct worker *w = calloc(1, sizeof(*w) + (chunks + idle) * sizeof(w->chunk[0]));
	char *area = mmap(NULL, (chunks + idle) * chunk, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (area == MAP_FAILED)
		die("mmap");
	w->rng = SEED + i * 7919;
	for (i = 0; i < chunks + idle; i++)
		w->chunk[i].at = area + i * chunk;
	return w;
}

static unsigned long field(const char *text, const char *name)
{
	const char *found = strstr(text, name);

	return found ? strtoul(found + strlen(name), NULL, 10) : 0;
}

struct samples {
	unsigned long n, lazy_kb, rss_kb, last_lazy_kb;
};

static void sample(const char *path, struct samples *s)
{
	char text[4096] = "";
	FILE *file = fopen(path, "r");
	unsigned long lazy, rss;

	if (!file || !fread(text, 1, sizeof(text) - 1, file))
		die(path);
	fclose(file);
	lazy = field(text, "\nLazyFree:");
	rss = field(text, "\nRss:");
	s->n++;
	s->last_lazy_kb = lazy;
	s->lazy_kb = lazy > s->lazy_kb ? lazy : s->lazy_kb;
	s->rss_kb = rss > s->rss_kb ? rss : s->rss_kb;
}

/*
 * Samples the lazily freed memory of a child until the child ends. The child is stopped for each
 * sample, as pages that move may be counted twice otherwise; no madvise() call of it runs then.
 */
static struct samples watch(pid_t pid, unsigned int pause_us, int *status)
{
	struct samples s = {};
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", pid);
	for (;;) {
		usleep(pause_us);
		kill(pid, SIGSTOP);
		if (waitpid(pid, status, WUNTRACED) != pid || !WIFSTOPPED(*status))
			return s;
		sample(path, &s);
		kill(pid, SIGCONT);
	}
}

static int number(char **argv, int argc, int i, int other)
{
	return argc > i ? atoi(argv[i]) : other;
}

static void parse(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "dontneed"))
		advice = MADV_DONTNEED;
	else if (argc > 1 && !strcmp(argv[1], "keep"))
		advice = -1;
	use_malloc = argc > 1 && !strcmp(argv[1], "malloc");
	threads = number(argv, argc, 2, 0);
	rounds = number(argv, argc, 3, 0);
	chunk = number(argv, argc, 4, 0) * 1024UL;
	chunks = number(argv, argc, 5, 0);
	free_percent = number(argv, argc, 6, 50);
	idle = number(argv, argc, 7, 0);
	if (threads < 1 || rounds < 1 || chunk < PAGE || chunk % PAGE || chunks < 2 ||
	    free_percent < 1 || free_percent > 99) {
		fprintf(stderr, "usage: lazy free|dontneed|keep|malloc THREADS ROUNDS CHUNK_KB CHUNKS"
				" [FREE_PERCENT [IDLE_CHUNKS]]\n");
		exit(2);
	}
}

/*
 * Frees a page by MADV_FREE and waits: the policy cap counts the lazily freed pages of a process
 * only after its first MADV_FREE.
 */
static void introduce(void)
{
	void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED || (advice >= 0 && madvise(page, PAGE, advice)))
		die("madvise");
	munmap(page, PAGE);
	usleep(100000);
}

/*
 * Runs all threads. Returns the ticks from the first thread's begin to the last one's end: of the
 * time stamp counter (instructions under icount), or ns of CPU time with malloc.
 */
static unsigned long run(unsigned long *mismatches)
{
	struct worker *workers[threads];
	uint64_t begin = UINT64_MAX, end = 0;

	introduce();
	pthread_barrier_init(&start, NULL, threads);
	for (int i = 0; i < threads; i++) {
		workers[i] = new_worker(i);
		if (pthread_create(&workers[i]->id, NULL, work, workers[i]))
			die("pthread_create");
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(workers[i]->id, NULL);
		*mismatches += workers[i]->mismatches;
		begin = workers[i]->begin < begin ? workers[i]->begin : begin;
		end = workers[i]->end > end ? workers[i]->end : end;
	}
	return end - begin;
}

static int run_and_print(void)
{
	unsigned long mismatches = 0, taken = run(&mismatches);
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	printf("{\"ticks\": %lu, \"faults\": %lu, \"mismatches\": %lu, ", taken, usage.ru_minflt,
	       mismatches);
	fflush(stdout);
	return mismatches != 0;
}

int main(int argc, char **argv)
{
	const char *pause_us = getenv("SAMPLE_US");
	struct samples s = {};
	int status = 0;
	pid_t pid = 0;

	parse(argc, argv);
	if (pause_us) {
		pid = fork();
		if (!pid)
			exit(run_and_print());
		s = watch(pid, atoi(pause_us), &status);
	} else {
		status = run_and_print();
	}
	printf("\"samples\": %lu, \"lazy_kb\": %lu, \"last_lazy_kb\": %lu, \"rss_kb\": %lu}\n",
	       s.n, s.lazy_kb, s.last_lazy_kb, s.rss_kb);
	return status != 0;
}
