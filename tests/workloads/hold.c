// SPDX-License-Identifier: GPL-2.0
/*
 * hold MIB GIB together|spread|huge|spin SECONDS - how long others make mmap() of a program wait.
 *
 * Reserves GIB of private memory and uses MIB of it: in single pages together at its beginning, in
 * single pages at equal distances, or in 2 MB folios of which every 16th page is used. Then calls
 * mmap() and munmap() each half millisecond, under SCHED_FIFO where that is allowed, and prints
 * each second the longest pair in microseconds. "ready" comes before the first of these lines.
 *
 * With "spin" it has no memory, keeps the CPU for every second millisecond, and prints the longest
 * time for which it lost the CPU: for so long this machine stops a reader, whatever lock it has.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096UL
#define STEP_NS 500000L

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static char *reserve(unsigned long bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return memory;
}

static void fill(char *memory, unsigned long pages, unsigned long room, const char *how)
{
	unsigned long page, distance = strcmp(how, "spread") ? 1 : room / pages;

	if (!strcmp(how, "huge")) {
		madvise(memory, pages * PAGE, MADV_HUGEPAGE);
		for (page = 0; page < pages; page += 16)
			memory[page * PAGE] = 1;
		return;
	}
	madvise(memory, room * PAGE, MADV_NOHUGEPAGE);
	for (page = 0; page < pages; page++)
		memory[page * distance * PAGE] = 1;
}

static double longest_of_a_second(void)
{
	struct timespec step = { .tv_nsec = STEP_NS };
	double begin, end, longest = 0, until = now_us() + 1e6;

	do {
		nanosleep(&step, NULL);
		begin = now_us();
		munmap(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), PAGE);
		end = now_us();
		if (end - begin > longest)
			longest = end - begin;
	} while (end < until);
	return longest;
}

static double longest_gap_of_a_second(void)
{
	struct timespec step = { .tv_nsec = 2 * STEP_NS };
	double now, last, longest = 0, until = now_us() + 1e6, pause;

	do {
		nanosleep(&step, NULL);
		last = now_us();
		for (pause = last + step.tv_nsec / 1e3; last < pause; last = now) {
			now = now_us();
			if (now - last > longest)
				longest = now - last;
		}
	} while (last < until);
	return longest;
}

int main(int argc, char **argv)
{
	struct sched_param first = { .sched_priority = 1 };
	unsigned long pages, room;
	int second, spin;

	if (argc != 5)
		return 2;
	pages = strtoul(argv[1], NULL, 0) << 8;
	room = strtoul(argv[2], NULL, 0) << 18;
	spin = !strcmp(argv[3], "spin");
	if (!spin)
		fill(reserve(room * PAGE), pages, room, argv[3]);
	if (sched_setscheduler(0, SCHED_FIFO, &first))
		fprintf(stderr, "without SCHED_FIFO\n");
	puts("ready");
	fflush(stdout);
	for (second = 0; second < atoi(argv[4]); second++) {
		printf("%.0f\n", spin ? longest_gap_of_a_second() : longest_of_a_second());
		fflush(stdout);
	}
	return 0;
}
