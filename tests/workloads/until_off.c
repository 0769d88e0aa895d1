// SPDX-License-Identifier: GPL-2.0
/*
 * until_off STATS FILE TEXT: writes TEXT to FILE, which turns the hook of anon_order off sooner or
 * later, then faults and checks whether the hook still counts faults in STATS. Prints one JSON
 * object: the ms since the write began at which the hook was last seen on, was first seen off, and
 * at which the write had ended. Its own memory is locked, so that it runs even while
 * memory is short.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "basics.h"

#define GIVE_UP_MS	60000

static int opened(const char *path, int flags)
{
	int fd = open(path, flags);

	if (fd < 0)
		die(path);
	return fd;
}

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Returns the sum of all counters in the file STATS. */
static unsigned long sum(int stats)
{
	static char text[16384];
	ssize_t len = pread(stats, text, sizeof(text) - 1, 0);
	unsigned long sum = 0;

	if (len <= 0)
		die("read");
	text[len] = '\0';
	for (char *at = text; (at = strchr(at, ' ')); at++)
		sum += strtoul(at + 1, NULL, 10);
	return sum;
}

static int is_on(int stats, char *area)
{
	unsigned long before = sum(stats);

	if (madvise(area, PAGE, MADV_DONTNEED))
		die("madvise");
	*(volatile char *)area = 1;
	return sum(stats) != before;
}

/* Writes in a child process, as the write may return later than the hook goes off. */
static void start_to_write(int fd, const char *text)
{
	pid_t child = fork();

	if (child < 0)
		die("fork");
	if (!child)
		_exit(write(fd, text, strlen(text)) < 0);
}

int main(int argc, char **argv)
{
	long begin, on = 0, off;
	int stats, file, status;
	char *area;

	if (argc != 4)
		return 2;
	stats = opened(argv[1], O_RDONLY);
	file = opened(argv[2], O_WRONLY);
	sum(stats);
	if (mlockall(MCL_CURRENT))
		die("mlockall");
	area = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		die("mmap");
	if (!is_on(stats, area)) {
		fprintf(stderr, "the hook is off from the start\n");
		return 1;
	}
	begin = now_ms();
	start_to_write(file, argv[3]);
	while (is_on(stats, area)) {
		on = now_ms() - begin;
		if (on > GIVE_UP_MS)
			break;
		usleep(5000);
	}
	off = now_ms() - begin;
	if (wait(&status) < 0 || status) {
		fprintf(stderr, "%s: the write failed\n", argv[2]);
		return 1;
	}
	printf("{\"on_ms\": %ld, \"off_ms\": %ld, \"written_ms\": %ld}\n", on, off,
	       now_ms() - begin);
	return 0;
}
