// SPDX-License-Identifier: GPL-2.0
/*
 * fold LOOKS SEED: uses 64 MB of anonymous memory at random in ways that make the kernel change
 * page table entries: fork, mremap, mprotect, swap, ageing, collapse, migration. At random moments
 * it has mmpolicy_folded (module/tests/folded.c) look at its entries, LOOKS times. Verifies
 * the contents of its memory.
 *
 * A block of 64 kB is used in full, the first and last page first, or at one of three pages only.
 * So no block has all its inner pages used before both ends are, unless a fault has mapped a folio
 * there.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basics.h"

#define UNIT	(2UL << 20)
#define UNITS	32
#define BLOCK	(64UL << 10)
#define BLOCKS	(UNIT / BLOCK)

#ifndef MADV_COLD
#define MADV_COLD	20
#define MADV_PAGEOUT	21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif
#define MPOL_BIND	2
#define MPOL_MF_MOVE	2

static char *unit[UNITS], *spare;
static unsigned int value[UNITS];	/* the first word of each written page of the unit */
static char full[UNITS][UNIT / PAGE];	/* 1: page written; do not read others */
static uint64_t state;

static unsigned int draw(unsigned int n)
{
	return next_random(&state, n);
}

static char *map_at(char *at, int prot)
{
	char *p = mmap(at, UNIT, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
		       -1, 0);

	if (p != at)
		die("mmap");
	return p;
}

static void use(int i, size_t page)
{
	volatile unsigned int *word = (volatile unsigned int *)(unit[i] + page * PAGE);

	if (full[i][page] && *word != value[i]) {
		fprintf(stderr, "unit %d page %zu holds %u, not %u\n", i, page, *word, value[i]);
		exit(1);
	}
	*word = value[i];
	full[i][page] = 1;
}

static void use_block(int i, int block)
{
	const size_t first = block * (BLOCK / PAGE);

	use(i, first);
	use(i, first + 15);
	for (int page = 1; page < 15; page++)
		use(i, first + page);
}

static void use_one(int i, int block)
{
	static const int page[] = { 0, 7, 15 };

	use(i, block * (BLOCK / PAGE) + page[draw(3)]);
}

static void use_some(int i)
{
	const int first = draw(BLOCKS), last = first + draw(BLOCKS - first) + 1;

	for (int block = first; block < last; block++)
		use_block(i, block);
}

static void use_few(int i)
{
	for (int block = 0; block < (int)BLOCKS; block++)
		if (!draw(3))
			use_one(i, block);
}

static void forked(int i)
{
	pid_t pid = fork();
	int status;

	if (pid < 0)
		die("fork");
	if (!pid) {
		use_few(i);
		_exit(0);
	}
	use_one(i, draw(BLOCKS));
	if (waitpid(pid, &status, 0) != pid || status)
		die("the child");
	for (int block = 0; block < (int)BLOCKS; block++)
		if (!draw(4))
			use(i, block * (BLOCK / PAGE) + 15);
}

static void moved(int i)
{
	char *from = unit[i];

	if (mremap(from, UNIT, UNIT, MREMAP_MAYMOVE | MREMAP_FIXED, spare) != spare)
		die("mremap");
	unit[i] = spare;
	spare = map_at(from, PROT_NONE);
}

static void protect(int i)
{
	const size_t page = draw(2) ? draw(BLOCKS) * 16 + 15 : 0, pages = page ? 1 : UNIT / PAGE;

	if (mprotect(unit[i] + page * PAGE, pages * PAGE, PROT_READ) ||
	    mprotect(unit[i] + page * PAGE, pages * PAGE, PROT_READ | PROT_WRITE))
		die("mprotect");
}

static void advise(int i, int advice)
{
	madvise(unit[i], UNIT, advice);	/* may fail, as MADV_COLLAPSE in an empty unit does */
}

static void migrate(int i)
{
	unsigned long node = 1UL << draw(2);

	syscall(SYS_mbind, unit[i], UNIT, MPOL_BIND, &node, 8UL, MPOL_MF_MOVE);
	syscall(SYS_mbind, unit[i], UNIT, 0, NULL, 0UL, 0);
}

/* Empties a unit; then uses each of its blocks in full, or only one page of the block. */
static void anew(int i)
{
	if (madvise(unit[i], UNIT, MADV_DONTNEED))
		die("madvise");
	memset(full[i], 0, sizeof(full[i]));
	for (int block = 0; block < (int)BLOCKS; block++)
		if (block < 4 || draw(2))
			use_block(i, block);
		else
			use_one(i, block);
}

static void step(int i)
{
	switch (draw(20)) {
	case 0: forked(i); break;
	case 1: moved(i); break;
	case 2: protect(i); break;
	case 3: migrate(i); break;
	case 4: advise(i, MADV_COLD); break;
	case 5: advise(i, draw(3) ? MADV_COLD : MADV_PAGEOUT); break;
	case 6: advise(i, draw(3) ? MADV_COLD : MADV_COLLAPSE); break;
	case 7: case 8: use_some(i); break;
	case 9: use_few(i); break;
	default: anew(i); break;
	}
}

static void look(void)
{
	FILE *f = fopen("/sys/kernel/debug/mmpolicy_folded", "w");

	if (!f || fprintf(f, "%d\n", getpid()) < 0 || fclose(f))
		die("mmpolicy_folded");
}

int main(int argc, char **argv)
{
	int looks = argc > 1 ? atoi(argv[1]) : 1;
	char *area = mmap(NULL, (UNITS + 2) * UNIT, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (area == MAP_FAILED)
		die("mmap");
	area = (char *)(((uintptr_t)area + UNIT - 1) & ~(UNIT - 1));
	state = SEED + (argc > 2 ? atoi(argv[2]) : 0);
	spare = area + UNITS * UNIT;
	for (int i = 0; i < UNITS; i++) {
		unit[i] = map_at(area + i * UNIT, PROT_READ | PROT_WRITE);
		value[i] = i + 1;
		for (int block = 0; block < (int)BLOCKS; block++)
			use_block(i, block);
	}
	while (looks > 0) {
		step(draw(UNITS));
		if (!draw(2)) {
			look();
			looks--;
		}
	}
	for (int i = 0; i < UNITS; i++)
		for (size_t page = 0; page < UNIT / PAGE; page++)
			use(i, page);
	return 0;
}
