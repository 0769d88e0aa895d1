// SPDX-License-Identifier: GPL-2.0
/*
 * stops MIB STEP [ADVICE]: writes to one page in STEP of an area, then reads these pages repeatedly
 * until /tmp/over exists, and sleeps for 2 ms in between. It creates /tmp/ready when it begins to
 * read. A read that takes long, or a late wake-up, means that the process was stopped; it records
 * the longest such time.
 *
 * Prints one JSON object; exits with status 1 if the contents of a page have changed.
 */
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "basics.h"

#define PMD	(2UL << 20)
#define WORDS	(PAGE / sizeof(uint64_t))
#define SLEEP_NS	2000000

static volatile uint64_t *area;
static size_t pages, step;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static uint64_t stamp(size_t page) { return page * 0x9e3779b97f4a7c15ULL | 1; }

static void make(size_t mib, int advice)
{
	char *p = mmap(NULL, (mib << 20) + PMD, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED || (advice && madvise(p, (mib << 20) + PMD, advice)))
		die("area");
	area = (void *)(((uintptr_t)p + PMD - 1) & ~(PMD - 1));
	for (size_t i = 0; i < pages; i += step)
		area[i * WORDS + i % WORDS] = stamp(i);
}

/* Counts wrong words in all pages. Called only at the end, as it faults in the empty pages. */
static unsigned long mismatches(void)
{
	unsigned long bad = 0;

	for (size_t i = 0; i < pages; i++)
		for (size_t word = 0; word < WORDS; word++)
			bad += area[i * WORDS + word] !=
				(i % step || word != i % WORDS ? 0 : stamp(i));
	return bad;
}

static uint64_t longest;

static uint64_t note(uint64_t since)
{
	uint64_t now = now_ns();

	if (now > since && now - since > longest)
		longest = now - since;
	return now;
}

static uint64_t sleep_from(uint64_t now)
{
	uint64_t end = now + SLEEP_NS;
	struct timespec until = { end / 1000000000, end % 1000000000 };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
	return note(end);
}

int main(int argc, char **argv)
{
	uint64_t now, rounds = 0, bad = 0;

	pages = argc > 1 ? (strtoul(argv[1], NULL, 0) << 20) / PAGE : 0;
	step = argc > 2 ? strtoul(argv[2], NULL, 0) : 0;
	if (!pages || !step) {
		fprintf(stderr, "usage: stops MIB STEP [ADVICE]\n");
		return 2;
	}
	make(pages * PAGE >> 20, argc > 3 ? atoi(argv[3]) : 0);
	if (close(open("/tmp/ready", O_CREAT | O_WRONLY, 0600)))
		die("/tmp/ready");
	for (now = now_ns(); access("/tmp/over", F_OK); rounds++) {
		for (size_t page = 0; page < pages; page += step) {
			bad += area[page * WORDS + page % WORDS] != stamp(page);
			now = note(now);
		}
		now = sleep_from(now);
	}
	bad += mismatches();
	printf("{\"rounds\": %lu, \"longest_us\": %lu, \"mismatches\": %lu}\n", rounds,
	       longest / 1000, bad);
	return !!bad;
}
