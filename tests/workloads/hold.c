// SPDX-License-Identifier: GPL-2.0
/*
 * hold MIB GIB HOW SECONDS - how long other processes make mmap() of a program wait.
 *
 * Reserves GIB of private memory and uses MIB, by HOW:
 *   together  in single pages at its beginning
 *   spread    in single pages at equal distances
 *   huge      in 2 MB folios with every 16th page used
 *   areas     together, and cut into 60,000 areas by mprotect()
 *   emptied   together, after a page in each 2 MB was present: page tables stay
 *   shared    together, in memory that a child would share
 *   forked    together, shared with a forked child
 *
 * Then calls mmap() and munmap() each half millisecond, under SCHED_FIFO if permitted. "ready"
 * precedes the first line of output; there is one each second, in microseconds: the longest pair,
 * the longest without the parts in which the machine stalled, and the longest stall.
 *
 * A virtual machine stalls a task regardless of locks: the program, or a reader that has its lock.
 * So each CPU has a control: a process of its own, first on that CPU, that wakes up four times a
 * millisecond and calls mmap(), too. If the control wakes up late, its CPU has stalled.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define STEP_NS 500000L
#define CONTROL_NS 250000L
#define LATE_US 200
#define KEPT 1024
#define PAIRS 4096
#define CPUS 256
#define AREAS 60000UL
#define TABLE 512UL

struct span {
	double begin, end;
};

/* Stalls that a CPU's control has recorded: their number, and the latest KEPT of them. */
struct stalls {
	unsigned long number;
	struct span spans[KEPT];
};

static struct stalls *stalls[CPUS];
static int controls;

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static char *reserve(unsigned long bytes, int sharing)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

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
	if (!strcmp(how, "emptied")) {
		for (page = 0; page < room; page += TABLE)
			memory[page * PAGE] = 1;
		madvise(memory, room * PAGE, MADV_DONTNEED);
	}
	for (page = 0; page < pages; page++)
		memory[page * distance * PAGE] = 1;
	for (page = 0; page < AREAS && !strcmp(how, "areas"); page += 2)
		mprotect(memory + page * PAGE, PAGE, PROT_READ);
	if (!strcmp(how, "forked") && !fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
	}
}

static void pair(void)
{
	munmap(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), PAGE);
}

static void go_first(int priority)
{
	struct sched_param first = { .sched_priority = priority };

	if (sched_setscheduler(0, SCHED_FIFO, &first))
		fprintf(stderr, "hold: SCHED_FIFO is not permitted, so other tasks may delay it\n");
}

/*
 * Runs as the control process of one CPU, and never returns: records each span in which it woke up
 * late.
 */
static void control(int cpu, struct stalls *seen)
{
	struct timespec next;
	cpu_set_t here;
	double due, end;

	CPU_ZERO(&here);
	CPU_SET(cpu, &here);
	sched_setaffinity(0, sizeof(here), &here);
	go_first(2);
	for (;;) {
		clock_gettime(CLOCK_MONOTONIC, &next);
		next.tv_nsec += CONTROL_NS;
		if (next.tv_nsec >= 1000000000L) {
			next.tv_sec++;
			next.tv_nsec -= 1000000000L;
		}
		due = next.tv_sec * 1e6 + next.tv_nsec / 1e3;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
		pair();
		end = now_us();
		if (end - due < LATE_US)
			continue;
		seen->spans[seen->number % KEPT] = (struct span){ due, end };
		__atomic_add_fetch(&seen->number, 1, __ATOMIC_RELEASE);
	}
}

static void start_controls(void)
{
	cpu_set_t allowed;
	int cpu;

	sched_getaffinity(0, sizeof(allowed), &allowed);
	for (cpu = 0; cpu < CPUS; cpu++) {
		if (!CPU_ISSET(cpu, &allowed))
			continue;
		stalls[controls] = mmap(NULL, sizeof(**stalls), PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			control(cpu, stalls[controls]);
		}
		controls++;
	}
}

/*
 * Returns the stall of any CPU that is in progress at time @at, or else the next one that begins
 * before @end; an empty span at @end if there is none. Times are in microseconds.
 */
static struct span stall_at(double at, double end)
{
	struct span found = { end, end };
	unsigned long number, all;
	int n;

	for (n = 0; n < controls; n++) {
		all = __atomic_load_n(&stalls[n]->number, __ATOMIC_ACQUIRE);
		for (number = all > KEPT ? all - KEPT : 0; number < all; number++) {
			struct span each = stalls[n]->spans[number % KEPT];

			if (each.end <= at || each.begin >= end)
				continue;
			if (each.begin < at)
				each.begin = at;
			if (each.begin < found.begin ||
			    (each.begin == found.begin && each.end > found.end))
				found = each;
		}
	}
	return found;
}

/* Returns in how many microseconds of a span no CPU stalled. */
static double without_stalls(struct span waited)
{
	double at = waited.begin, sum = 0;

	while (at < waited.end) {
		struct span stall = stall_at(at, waited.end);

		sum += stall.begin - at;
		at = stall.end;
	}
	return sum;
}

static double longest_stall(double begin, double end)
{
	double longest = 0;

	while (begin < end) {
		struct span stall = stall_at(begin, end);

		if (stall.end - stall.begin > longest)
			longest = stall.end - stall.begin;
		begin = stall.end;
	}
	return longest;
}

static void a_second(void)
{
	static struct span pairs[PAIRS];
	struct timespec step = { .tv_nsec = STEP_NS }, controls_wake = { .tv_nsec = 4 * STEP_NS };
	double longest = 0, alone = 0, began = now_us();
	int number = 0, n;

	do {
		nanosleep(&step, NULL);
		pairs[number].begin = now_us();
		pair();
		pairs[number].end = now_us();
	} while (pairs[number++].end < began + 1e6 && number < PAIRS);
	nanosleep(&controls_wake, NULL);
	for (n = 0; n < number; n++) {
		double took = pairs[n].end - pairs[n].begin;

		longest = took > longest ? took : longest;
		if (took > alone && without_stalls(pairs[n]) > alone)
			alone = without_stalls(pairs[n]);
	}
	printf("%.0f %.0f %.0f\n", longest, alone, longest_stall(began, pairs[number - 1].end));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	unsigned long pages, room;
	int second;

	if (argc != 5)
		return 2;
	pages = strtoul(argv[1], NULL, 0) << 8;
	room = strtoul(argv[2], NULL, 0) << 18;
	start_controls();
	fill(reserve(room * PAGE, strcmp(argv[3], "shared") ? MAP_PRIVATE : MAP_SHARED), pages, room,
	     argv[3]);
	go_first(1);
	puts("ready");
	fflush(stdout);
	for (second = 0; second < atoi(argv[4]); second++)
		a_second();
	return 0;
}
