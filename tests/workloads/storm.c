// SPDX-License-Identifier: GPL-2.0
/*
 * storm MODULE.ko ROUNDS THREADS: threads fault and verify every page, while
 * another process loads the module, switches every policy and turns every knob,
 * and unloads it with policies active. Prints one JSON object; ends with status 1
 * where a page held what nobody wrote or a round failed.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basics.h"

#define PROFILES	"/sys/kernel/mmpolicy/profiles"
#define MAX_PAGES	3000UL	/* of one area */
#define DEADLINE_S	1500

/* ---- The process that switches */

static unsigned long writes, refused;

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0)
		die(path);
	writes++;
	if (write(fd, text, strlen(text)) < 0) {
		if (errno != ERANGE)
			die(path);
		refused++;
	}
	close(fd);
}

static void get(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

	if (n < 0)
		die(path);
	text[n] = '\0';
	close(fd);
}

/* The list of a policy file holds brackets around the active one. */
static void each_policy(const char *path, char *list)
{
	for (char *name = strtok(list, " []\n"); name; name = strtok(NULL, " []\n"))
		put(path, name);
}

/* Some of these are out of bounds, as the kernel may say. Then as it was. */
static void each_value(const char *path, const char *before)
{
	static const char *const values[] = { "0", "1", "4", "9", "64" };

	for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++)
		put(path, values[i]);
	put(path, before);
}

static int turn(const char *path, const struct stat *st, int type, struct FTW *where)
{
	char text[4096];

	/* Root may open what is write-only, but there is nothing to read there. */
	if (type != FTW_F || (st->st_mode & 0600) != 0600)
		return 0;
	get(path, text, sizeof(text));
	if (!strcmp(path + where->base, "policy"))
		each_policy(path, text);
	else if (isdigit(text[0]))
		each_value(path, text);
	return 0;
}

static void load(const char *module)
{
	int fd = open(module, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || syscall(SYS_finit_module, fd, "anon_order=adaptive", 0))
		die(module);
	close(fd);
}

static void switch_around(const char *module, int rounds)
{
	alarm(DEADLINE_S);
	for (int i = 0; i < rounds; i++) {
		load(module);
		if (nftw(PROFILES, turn, 16, FTW_PHYS))
			die(PROFILES);
		if (syscall(SYS_delete_module, "mmpolicy", O_NONBLOCK))
			die("delete_module");
	}
	printf("\"rounds\": %d, \"writes\": %lu, \"refused\": %lu, ", rounds, writes, refused);
}

/* ---- The threads that fault */

static atomic_bool over;
static atomic_ulong touched, mismatches;

struct state {
	uint64_t rng;
	uint64_t *page;
	size_t pages;
	unsigned char there[MAX_PAGES];
};

static volatile uint64_t *word(const struct state *s, size_t i)
{
	return s->page + i * (PAGE / sizeof(uint64_t));
}

static uint64_t stamp(const struct state *s, size_t i) { return (uintptr_t)s ^ i << 1 ^ 1; }

/*
 * QEMU may run all CPUs in one thread, and then goes on with another one ten
 * times a second, wherever that is; and where one pauses, so that the process
 * which switches need not wait that long for each answer of the other CPUs.
 */
static void touch(struct state *s, size_t i)
{
	*word(s, i) = stamp(s, i);
	s->there[i] = 1;
	touched++;
	if (!next_random(&s->rng, 64))
		__builtin_ia32_pause();
}

static void touch_some(struct state *s)
{
	size_t step = 1UL << next_random(&s->rng, 6), down = next_random(&s->rng, 2);

	for (size_t i = 0; i < s->pages; i += step)
		touch(s, down ? s->pages - 1 - i : i);
}

static void drop_some(struct state *s)
{
	size_t first = next_random(&s->rng, s->pages), n = next_random(&s->rng, s->pages - first);

	if (n && madvise((void *)word(s, first), n * PAGE, MADV_DONTNEED))
		die("madvise");
	memset(s->there + first, 0, n);
}

static void verify(struct state *s)
{
	for (size_t i = 0; i < s->pages; i++)
		if (*word(s, i) != (s->there[i] ? stamp(s, i) : 0))
			mismatches++;
}

/* Protection splits the VMA, and merges it again. */
static void split(struct state *s)
{
	size_t first = next_random(&s->rng, s->pages);

	if (mprotect((void *)word(s, first), PAGE, PROT_READ) ||
	    mprotect((void *)word(s, first), PAGE, PROT_READ | PROT_WRITE))
		die("mprotect");
}

static void one_area(struct state *s)
{
	s->pages = 1 + next_random(&s->rng, MAX_PAGES);
	memset(s->there, 0, sizeof(s->there));
	s->page = mmap(NULL, s->pages * PAGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (s->page == MAP_FAILED)
		die("mmap");
	touch_some(s);
	split(s);
	drop_some(s);
	touch_some(s);
	verify(s);
	munmap(s->page, s->pages * PAGE);
}

static void *fault(void *arg)
{
	struct state *s = arg;

	while (!over)
		one_area(s);
	return NULL;
}

static void start(pthread_t *id, int i)
{
	struct state *s = calloc(1, sizeof(*s));

	s->rng = SEED + i;
	if (pthread_create(id, NULL, fault, s))
		die("pthread_create");
}

int main(int argc, char **argv)
{
	int rounds = argc == 4 ? atoi(argv[2]) : 0, threads = rounds ? atoi(argv[3]) : 0, status;

	if (threads < 1) {
		fprintf(stderr, "usage: storm MODULE.ko ROUNDS THREADS\n");
		return 2;
	}
	pthread_t id[threads];
	pid_t pid = fork();

	if (!pid) {
		printf("{");
		switch_around(argv[1], rounds);
		exit(0);
	}
	for (int i = 0; i < threads; i++)
		start(&id[i], i);
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	over = true;
	for (int i = 0; i < threads; i++)
		pthread_join(id[i], NULL);
	printf("\"touched\": %lu, \"mismatches\": %lu, \"status\": %d}\n", touched, mismatches,
	       status);
	return status || mismatches || !touched;
}
