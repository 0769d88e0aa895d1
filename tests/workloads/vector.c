// SPDX-License-Identifier: GPL-2.0
/*
 * vector ADVICE: frees every second page of an area by one madvise() per page, and then by one
 * process_madvise() for all pages, while a thread spins on each other CPU. Prints for both: TLB
 * flush interrupts, freed pages and lazily freed pages. Fails if one of the other pages has
 * changed, or if a wrong vector is not refused.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basics.h"

#define RANGES	1000UL

static unsigned char *area;
static struct iovec ranges[RANGES];
static int running;

static void check(bool ok, const char *what)
{
	if (!ok)
		die(what);
}

static void run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	check(!sched_setaffinity(0, sizeof(set), &set), "sched_setaffinity");
}

static void *spin(void *cpu)
{
	run_on((int)(intptr_t)cpu);
	__atomic_fetch_add(&running, 1, __ATOMIC_SEQ_CST);
	for (;;)
		__atomic_load_n(area, __ATOMIC_RELAXED);
	return NULL;
}

static void spin_everywhere(void)
{
	int cpus = sysconf(_SC_NPROCESSORS_ONLN);
	pthread_t thread;

	run_on(0);
	for (intptr_t cpu = 1; cpu < cpus; cpu++)
		check(!pthread_create(&thread, NULL, spin, (void *)cpu), "pthread_create");
	while (__atomic_load_n(&running, __ATOMIC_SEQ_CST) < cpus - 1)
		usleep(1000);
}

/* Returns the sum of the numbers in the line of a file that begins with @name. */
static long sum_of(const char *path, const char *name)
{
	FILE *file = fopen(path, "r");
	char line[4096], *at, *end;
	long sum = 0, n;

	check(file != NULL, path);
	while (fgets(line, sizeof(line), file)) {
		at = line + strspn(line, " ");
		if (strncmp(at, name, strlen(name)))
			continue;
		for (at += strlen(name); n = strtol(at, &end, 10), end != at; at = end)
			sum += n;
	}
	fclose(file);
	return sum;
}

static long interrupts(void) { return sum_of("/proc/interrupts", "TLB:"); }
static long left(void) { return sum_of("/proc/self/smaps_rollup", "Anonymous:") / 4; }
static long lazy(void) { return sum_of("/proc/self/smaps_rollup", "LazyFree:") / 4; }

static void fill(void)
{
	for (size_t i = 0; i < 2 * RANGES; i++)
		memset(area + i * PAGE, 1 + i % 255, PAGE);
}

static void verify(void)
{
	for (size_t i = 0; i < 2 * RANGES; i++) {
		unsigned char *page = area + i * PAGE, value = page[0];

		if (value == 1 + i % 255 ? page[PAGE - 1] != value : value || i % 2)
			die("a page has changed");
	}
}

static ssize_t vector(pid_t pid, size_t nr, int advice)
{
	int fd = syscall(SYS_pidfd_open, pid, 0);
	ssize_t freed;
	int error;

	check(fd >= 0, "pidfd_open");
	freed = syscall(SYS_process_madvise, fd, ranges, nr, advice, 0);
	error = errno;
	close(fd);
	errno = error;
	return freed;
}

static void by_one(int advice)
{
	for (size_t i = 0; i < RANGES; i++)
		check(!madvise(ranges[i].iov_base, PAGE, advice), "madvise");
}

static void by_all(int advice)
{
	check(vector(getpid(), RANGES, advice) == (ssize_t)(RANGES * PAGE), "process_madvise");
}

static void measure(const char *name, void (*free_all)(int), int advice)
{
	long before, flushed, freed;

	fill();
	before = left();
	flushed = interrupts();
	free_all(advice);
	flushed = interrupts() - flushed;
	freed = before - left();
	printf("\"%s\": {\"flushed\": %ld, \"freed\": %ld, \"lazy\": %ld}, ", name, flushed, freed,
	       lazy());
	verify();
}

/*
 * Checks that process_madvise() refuses to act on another process, and refuses all ranges from the
 * first wrong one on.
 */
static void refused(int advice)
{
	struct iovec third = ranges[2];
	pid_t child = fork();

	if (!child) {
		pause();
		_exit(0);
	}
	check(child > 0, "fork");
	check(vector(child, 1, advice) < 0 && errno == EINVAL, "another process");
	kill(child, 9);
	waitpid(child, NULL, 0);

	fill();
	ranges[2].iov_base = (char *)ranges[2].iov_base + 1;
	check(vector(getpid(), RANGES, advice) == 2 * (ssize_t)PAGE, "a wrong range");
	check(vector(getpid(), RANGES, 4242) < 0 && errno == EINVAL, "a wrong advice");
	ranges[2] = third;
	for (size_t i = 4; i < RANGES; i++)
		check(*(unsigned char *)ranges[i].iov_base, "a range after a wrong one");
	verify();
}

int main(int argc, char **argv)
{
	int advice = argc > 1 ? atoi(argv[1]) : MADV_DONTNEED;

	area = mmap(NULL, 2 * RANGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		    -1, 0);
	check(area != MAP_FAILED, "mmap");
	for (size_t i = 0; i < RANGES; i++)
		ranges[i] = (struct iovec){ area + 2 * i * PAGE, PAGE };
	spin_everywhere();
	printf("{");
	measure("each", by_one, advice);
	measure("all", by_all, advice);
	refused(advice);
	printf("\"cpus\": %d}\n", running + 1);
	return 0;
}
