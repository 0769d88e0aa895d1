// SPDX-License-Identifier: GPL-2.0
/*
 * storm MODULE.ko ROUNDS PROCESSES THREADS HOG_MIB [briefly]: processes with THREADS threads each
 * fault, free and verify every page, while another process loads the module, switches every policy
 * and turns every knob, and unloads it with policies active. With "briefly", it switches one policy
 * per round, a different one each time. The other processes then pause between areas, and run at
 * lowest priority: most of a round is waiting for the kernel.
 *
 * Unless HOG_MIB is 0, one more process fills this much memory, so that others must reclaim, and
 * frees every second page, so that they must compact, again and again; with "briefly", a small part
 * of its memory at a time.
 *
 * Prints one JSON object, with the number of rounds in which an event happened between load and
 * unload; exits with status 1 if a page held unexpected data, or a process or a round failed.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basics.h"

#define PROFILES	"/sys/kernel/mmpolicy/profiles"
#define MAX_PAGES	3000UL	/* most pages of an area */
#define DEADLINE_S	5000		/* long, as the guest's clock may jump */
#define PAUSE_US	1000000		/* mean pause with "briefly" */
#define BRIEF_PAGES	512UL		/* pages that the hog renews at a time */
#define BRIEF_COMPACT	8		/* one in this many parts of the hog also compacts */
#define LEAST		19	/* lowest priority */

static bool briefly;

static struct {
	atomic_bool ready, over;
	atomic_ulong touched, mismatches;
} *all;				/* shared by processes */

/* ---- The process that switches */

static unsigned long writes, refused;

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0)
		die(path);
	writes++;
	if (write(fd, text, strlen(text)) < 0) {
		if (errno != ERANGE && errno != EOPNOTSUPP)
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

/*
 * Writes each policy that a policy file lists to the file. The list has brackets around the active
 * policy.
 */
static void each_policy(const char *path, char *list)
{
	for (char *name = strtok(list, " []\n"); name; name = strtok(NULL, " []\n"))
		put(path, name);
}

/* Writes several values to a knob, of which some may be out of bounds; then the old value. */
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

	/* Root may open write-only files, but cannot read them. */
	if (type != FTW_F || (st->st_mode & 0600) != 0600)
		return 0;
	get(path, text, sizeof(text));
	if (!strcmp(path + where->base, "policy"))
		each_policy(path, text);
	else if (isdigit(text[0]))
		each_value(path, text);
	return 0;
}

/* Number of policies still to skip; the policy at which it is 0 is written. */
static int nth;

static void one_policy(const char *path, char *list)
{
	for (char *name = strtok(list, " []\n"); name; name = strtok(NULL, " []\n"))
		if (!nth--)
			put(path, name);
}

static int turn_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
	char text[4096];

	if (type == FTW_F && !strcmp(path + where->base, "policy")) {
		get(path, text, sizeof(text));
		one_policy(path, text);
	}
	return 0;
}

static void turn_briefly(int round)
{
	static int policies;

	nth = policies ? round % policies : -1;
	if (nftw(PROFILES, turn_one, 16, FTW_PHYS))
		die(PROFILES);
	if (!policies)
		policies = -1 - nth;
}

/* What the other processes cause: counters in /proc/vmstat, and the number of touched pages. */
static const char *const events[] = {
	"pswpout", "pswpin", "pgscan_direct", "compact_stall", "thp_collapse_alloc", "touched",
};

#define EVENTS	(sizeof(events) / sizeof(*events))

static void count(unsigned long *counted)
{
	FILE *file = fopen("/proc/vmstat", "r");
	unsigned long n;
	char name[64];

	if (!file)
		die("vmstat");
	while (fscanf(file, "%63s %lu", name, &n) == 2)
		for (size_t i = 0; i < EVENTS; i++)
			if (!strcmp(name, events[i]))
				counted[i] = n;
	fclose(file);
	counted[EVENTS - 1] = all->touched;
}

static unsigned long seen[EVENTS];	/* number of rounds in which each event happened */

static void see(const unsigned long *before)
{
	unsigned long now[EVENTS] = {0};

	count(now);
	for (size_t i = 0; i < EVENTS; i++)
		seen[i] += now[i] != before[i];
}

static const char *module;

static void load(void)
{
	int fd = open(module, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || syscall(SYS_finit_module, fd, "anon_order=adaptive untested=1", 0))
		die(module);
	close(fd);
}

static void one_round(int round)
{
	unsigned long before[EVENTS] = {0};

	count(before);
	load();
	if (briefly)
		turn_briefly(round);
	else if (nftw(PROFILES, turn, 16, FTW_PHYS))
		die(PROFILES);
	if (syscall(SYS_delete_module, "mmpolicy", O_NONBLOCK))
		die("delete_module");
	see(before);
}

static void switch_around(int rounds)
{
	alarm(DEADLINE_S);
	for (int i = 0; i < rounds; i++)
		one_round(i);
	printf("{\"rounds\": %d, \"writes\": %lu, \"refused\": %lu, \"seen\": {",
	       rounds, writes, refused);
	for (size_t i = 0; i < EVENTS; i++)
		printf("%s\"%s\": %lu", i ? ", " : "", events[i], seen[i]);
	printf("}, ");
}

/* ---- The threads that fault */

enum { NOTHING, WRITTEN, FREED };	/* freed lazily: as written, or zero */

struct state {
	uint64_t rng;
	uint64_t *page;
	size_t pages;
	unsigned char there[];
};

static struct state *new_state(uint64_t seed, size_t max_pages)
{
	struct state *s = calloc(1, sizeof(*s) + max_pages);

	if (!s)
		die("calloc");
	s->rng = SEED + seed;
	return s;
}

static volatile uint64_t *word(const struct state *s, size_t i)
{
	return s->page + i * (PAGE / sizeof(uint64_t));
}

static uint64_t stamp(const struct state *s, size_t i) { return (uintptr_t)s ^ i << 1 ^ 1; }

/*
 * Writes to a page, and executes a pause instruction at random. QEMU may emulate all CPUs in one
 * thread. It then switches to another CPU only ten times a second, and at each pause. Without
 * pauses, the switching process would wait that long for each answer of another CPU.
 */
static void touch(struct state *s, size_t i)
{
	*word(s, i) = stamp(s, i);
	s->there[i] = WRITTEN;
	all->touched++;
	if (!next_random(&s->rng, 64))
		pause_cpu();
}

static void touch_some(struct state *s)
{
	size_t step = 1UL << next_random(&s->rng, 6), down = next_random(&s->rng, 2);

	for (size_t i = 0; i < s->pages; i += step)
		touch(s, down ? s->pages - 1 - i : i);
}

static void drop(struct state *s, size_t first, size_t n, bool lazily)
{
	if (n && madvise((void *)word(s, first), n * PAGE, lazily ? MADV_FREE : MADV_DONTNEED))
		die("madvise");
	for (size_t i = first; i < first + n; i++)
		s->there[i] = lazily && s->there[i] ? FREED : NOTHING;
}

static void drop_some(struct state *s)
{
	size_t first = next_random(&s->rng, s->pages), n = next_random(&s->rng, s->pages - first);

	drop(s, first, n, next_random(&s->rng, 2));
}

static void verify(struct state *s)
{
	for (size_t i = 0; i < s->pages; i++) {
		uint64_t found = *word(s, i);

		if (found == stamp(s, i) ? s->there[i] == NOTHING : found || s->there[i] == WRITTEN)
			all->mismatches++;
	}
}

/* Makes a page read-only and writable again, which splits the VMA and merges it. */
static void split(struct state *s)
{
	size_t first = next_random(&s->rng, s->pages);

	if (mprotect((void *)word(s, first), PAGE, PROT_READ) ||
	    mprotect((void *)word(s, first), PAGE, PROT_READ | PROT_WRITE))
		die("mprotect");
}

static void map(struct state *s, size_t pages, int advice)
{
	s->pages = pages;
	s->page = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);
	if (s->page == MAP_FAILED || madvise(s->page, pages * PAGE, advice))
		die("mmap");
}

/* With "briefly", sleeps for a random time, so that faults happen in all parts of a round. */
static void pause_a_while(struct state *s)
{
	if (briefly)
		usleep(next_random(&s->rng, 2 * PAUSE_US));
}

static void one_area(struct state *s)
{
	map(s, 1 + next_random(&s->rng, MAX_PAGES), next_random(&s->rng, 2) ? MADV_HUGEPAGE : MADV_NORMAL);
	memset(s->there, NOTHING, s->pages);
	touch_some(s);
	split(s);
	drop_some(s);
	touch_some(s);
	verify(s);
	munmap(s->page, s->pages * PAGE);
}

static void *fault(void *arg)
{
	while (!all->over) {
		one_area(arg);
		pause_a_while(arg);
	}
	return NULL;
}

static void fault_with(int threads)
{
	pthread_t id[threads];

	for (int i = 0; i < threads; i++)
		if (pthread_create(&id[i], NULL, fault, new_state(getpid() * threads + i, MAX_PAGES)))
			die("pthread_create");
	for (int i = 0; i < threads; i++)
		pthread_join(id[i], NULL);
}

/*
 * Frees every second page of a part, then touches all of its pages. Requests compaction first; with
 * "briefly" only seldom, as otherwise no other process would ever have to compact.
 */
static void some_anew(struct state *s, size_t first, size_t end)
{
	if (!briefly || !next_random(&s->rng, BRIEF_COMPACT))
		put("/proc/sys/vm/compact_memory", "1");
	for (size_t i = first; i < end && !all->over; i += 2)
		drop(s, i, 1, false);
	for (size_t i = first; i < end && !all->over; i++)
		touch(s, i);
}

static void hog(int mib)
{
	size_t pages = ((size_t)mib << 20) / PAGE, part = briefly ? BRIEF_PAGES : pages;
	struct state *s = new_state(0, pages);

	map(s, pages, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < pages; i++)
		touch(s, i);
	all->ready = true;
	for (size_t at = 0; !all->over; at = at + part < pages ? at + part : 0) {
		pause_a_while(s);
		some_anew(s, at, at + part < pages ? at + part : pages);
	}
	verify(s);
}

/* ---- All of them */

static int children, failed;

static pid_t start(void (*run)(int), int arg)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	children++;
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (briefly && run != switch_around && nice(LEAST) == -1)
		die("nice");
	run(arg);
	exit(0);
}

/* Waits until the process @pid has ended; 0: until all have. */
static void wait_for(pid_t pid)
{
	int status;
	pid_t ended = 0;

	for (; children && (!ended || ended != pid); children--) {
		ended = wait(&status);
		if (ended < 0)
			die("wait");
		failed |= status;
	}
}

static void start_hog(int mib)
{
	start(hog, mib);
	while (!all->ready)
		if (usleep(10000) || waitpid(-1, NULL, WNOHANG))
			die("hog");
}

static void run(int rounds, int processes, int threads, int mib)
{
	if (mib)
		start_hog(mib);
	for (int i = 0; i < processes; i++)
		start(fault_with, threads);
	wait_for(start(switch_around, rounds));
	all->over = true;
	wait_for(0);
}

int main(int argc, char **argv)
{
	if (argc < 6 || argc > 7) {
		fprintf(stderr, "usage: storm MODULE.ko ROUNDS PROCESSES THREADS HOG_MIB [briefly]\n");
		return 2;
	}
	briefly = argc > 6;
	module = argv[1];
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED)
		die("mmap");
	run(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
	printf("\"touched\": %lu, \"mismatches\": %lu, \"status\": %d}\n", all->touched,
	       all->mismatches, failed);
	return failed || all->mismatches || !all->touched;
}
