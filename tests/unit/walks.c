// SPDX-License-Identifier: GPL-2.0
#include <string.h>

#include "walks.h"

#define STREAMS		4

unsigned int pick(unsigned int n)
{
	static u64 state = 88172645463325252ULL;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % n;
}

static void up(struct sim *sim, unsigned long start, unsigned long end, unsigned long step)
{
	for (; start < end; start += step)
		sim_touch(sim, start);
}

static void down(struct sim *sim, unsigned long start, unsigned long end)
{
	while (end > start)
		sim_touch(sim, --end);
}

static void area(struct sim *sim)
{
	sim_vma(sim, START, START + AREA);
}

static void stride(struct sim *sim, unsigned long step)
{
	area(sim);
	up(sim, START, START + AREA, step);
}

void forward(struct sim *sim) { stride(sim, 1); }
void every_32k(struct sim *sim) { stride(sim, 8); }
void every_64k(struct sim *sim) { stride(sim, 16); }
void every_128k(struct sim *sim) { stride(sim, 32); }

void backward(struct sim *sim)
{
	area(sim);
	down(sim, START, START + AREA);
}

/* Touches all pages of a VMA whose start and end are not aligned to any folio. */
void unaligned(struct sim *sim)
{
	sim_vma(sim, START + 5, START + AREA + 11);
	up(sim, START + 5, START + AREA + 11, 1);
}

void streams(struct sim *sim)
{
	unsigned long i, part = AREA / STREAMS;

	area(sim);
	for (i = 0; i < AREA; i++)
		sim_touch(sim, START + i % STREAMS * part + i / STREAMS);
}

/*
 * Touches memory as threads on several CPUs do: each time, a random stream advances by a random
 * number of pages.
 */
void uneven_streams(struct sim *sim)
{
	unsigned long part = AREA / STREAMS, done[STREAMS] = {}, sum;

	area(sim);
	for (sum = 0; sum < AREA;) {
		unsigned int stream = pick(STREAMS), n = pick(40);

		for (; n && done[stream] < part; n--, sum++)
			sim_touch(sim, START + stream * part + done[stream]++);
	}
}

void random_quarter(struct sim *sim)
{
	static bool seen[AREA];
	unsigned long n = 0;

	area(sim);
	memset(seen, 0, sizeof(seen));
	while (n < AREA / 4) {
		unsigned int page = pick(AREA);

		if (!seen[page])
			sim_touch(sim, START + page);
		n += !seen[page];
		seen[page] = true;
	}
}

void dense_then_sparse(struct sim *sim)
{
	area(sim);
	up(sim, START, START + AREA / 2, 1);
	up(sim, START + AREA / 2, START + AREA, 16);
}

void sparse_then_dense(struct sim *sim)
{
	area(sim);
	up(sim, START, START + AREA / 2, 16);
	up(sim, START + AREA / 2, START + AREA, 1);
}

void sparse_filled_up(struct sim *sim)
{
	area(sim);
	up(sim, START, START + AREA, 16);
	up(sim, START, START + AREA, 1);
}

/* Touches the first 16 MiB in full, then one page in each 2 MiB. */
void every_2m(struct sim *sim)
{
	sim_vma(sim, START, START + 128 * SIM_TABLE);
	up(sim, START, START + 8 * SIM_TABLE, 1);
	up(sim, START + 8 * SIM_TABLE, START + 128 * SIM_TABLE, SIM_TABLE);
}

/* Touches a heap as malloc does: grows it by 33 pages, and uses these before it grows again. */
void heap(struct sim *sim)
{
	unsigned long end;

	for (end = START + 33; end <= START + AREA; end += 33) {
		sim_vma(sim, START, end);
		up(sim, end - 33, end, 1);
	}
}

/* Touches a stack downwards: each time, the kernel grows its VMA down to the page that faults. */
void stack(struct sim *sim)
{
	unsigned long page = START + AREA / 4;

	while (page-- > START) {
		sim_vma(sim, page, START + AREA / 4);
		sim_touch(sim, page);
	}
}

static void discard(struct sim *sim)
{
	const struct mmp_policy *policy = sim->policy;
	u32 knob[SIM_KNOBS];

	memcpy(knob, sim->knob, sizeof(knob));
	sim_free(sim);
	sim_init(sim, policy);
	memcpy(sim->knob, knob, sizeof(knob));
}

/* Touches a stack again after its memory was freed: the VMA keeps its size. */
void stack_again(struct sim *sim)
{
	stack(sim);
	discard(sim);
	sim_vma(sim, START, START + AREA / 4);
	down(sim, START, START + AREA / 4);
}

static void swapped_area(struct sim *sim)
{
	unsigned long page;

	area(sim);
	for (page = START; page < START + AREA; page++)
		sim_swap_out(sim, page);
}

void swap_in_forward(struct sim *sim)
{
	swapped_area(sim);
	up(sim, START, START + AREA, 1);
}

void swap_in_backward(struct sim *sim)
{
	swapped_area(sim);
	down(sim, START, START + AREA);
}

void swap_in_sparse(struct sim *sim)
{
	swapped_area(sim);
	up(sim, START, START + AREA, 16);
}

/* After fork(), the child's pages look unused, and it touches new pages after them. */
void after_fork(struct sim *sim)
{
	unsigned long page;

	area(sim);
	up(sim, START, START + AREA / 2, 1);
	for (page = START; page < START + AREA / 2; page++)
		sim_age(sim, page);
	up(sim, START + AREA / 2, START + AREA, 1);
}

void across_pmd_pages(struct sim *sim)
{
	sim_vma(sim, SIM_PUD - AREA / 2, SIM_PUD + AREA / 2);
	up(sim, SIM_PUD - AREA / 2, SIM_PUD + AREA / 2, 1);
}

/* Touches a 32nd of the area in full, then the first and the last page of each 64 kB. */
void both_ends(struct sim *sim)
{
	unsigned long page;

	area(sim);
	up(sim, START, START + AREA / 32, 1);
	for (page = START + AREA / 32; page < START + AREA; page++)
		if (page % 16 == 0 || page % 16 == 15)
			sim_touch(sim, page);
}
