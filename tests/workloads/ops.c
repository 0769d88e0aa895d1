// SPDX-License-Identifier: GPL-2.0
/*
 * ops OP ARGUMENT... OP ARGUMENT...: a small language to use one anonymous area in every way that
 * moves, splits, shares or drops its pages, with a model of the expected contents of each page.
 * Pages are counted from the start of the area; A B means pages A to B - 1. Exits with status 1 if
 * memory and model differ.
 */
#define _GNU_SOURCE
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "folios.h"
#include "words.h"

#define PMD		(2UL << 20)
#define MAX_PAGES	(1UL << 18)
#define GONE		(~0UL)

static char *area;
static size_t nr_pages;
static uint64_t model[MAX_PAGES];	/* expected first word by page; GONE: unmapped */
static uint64_t serial = 1;

static void check(int failed, const char *what)
{
	if (failed)
		die(what);
}

static volatile uint64_t *word(size_t page)
{
	return (volatile uint64_t *)(area + page * PAGE);
}

static void *at(size_t page) { return area + page * PAGE; }

/* Reserves an aligned range without neighbours, so that its VMA is not merged. */
static char *reserve(size_t pages)
{
	char *p = mmap(NULL, pages * PAGE + 2 * PMD, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	check(p == MAP_FAILED, "mmap");
	return (char *)(((uintptr_t)p + PMD) & ~(PMD - 1));
}

static void op_map(char **arg)
{
	nr_pages = strtoul(arg[0], NULL, 0);
	check(nr_pages > MAX_PAGES, "map: too large");
	area = reserve(nr_pages);
	check(mmap(area, nr_pages * PAGE, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != area, "mmap");
	memset(model, 0, nr_pages * sizeof(*model));
}

static size_t from(char **arg) { return strtoul(arg[0], NULL, 0); }

static size_t to(char **arg)
{
	size_t n = strtoul(arg[1], NULL, 0);

	return n < nr_pages ? n : nr_pages;
}

static size_t bytes(char **arg) { return (to(arg) - from(arg)) * PAGE; }

static void write_page(size_t page)
{
	model[page] = ++serial << 20 | page;
	*word(page) = model[page];
}

static void op_touch(char **arg)
{
	for (size_t i = from(arg); i < to(arg); i++)
		write_page(i);
}

static void op_every(char **arg)
{
	for (size_t i = from(arg); i < to(arg); i += strtoul(arg[2], NULL, 0))
		write_page(i);
}

static void op_down(char **arg)
{
	for (size_t i = to(arg); i-- > from(arg);)
		write_page(i);
}

static void op_verify(char **arg)
{
	(void)arg;
	for (size_t i = 0; i < nr_pages; i++) {
		if (model[i] == GONE || *word(i) == model[i])
			continue;
		fprintf(stderr, "page %zu holds %#lx, not %#lx\n", i, *word(i), model[i]);
		exit(1);
	}
}

static void op_madvise(char **arg)
{
	int advice = atoi(arg[2]);

	check(madvise(at(from(arg)), bytes(arg), advice), "madvise");
	if (advice == MADV_DONTNEED)
		memset(&model[from(arg)], 0, (to(arg) - from(arg)) * sizeof(*model));
}

static void op_mprotect(char **arg)
{
	check(mprotect(at(from(arg)), bytes(arg), atoi(arg[2])), "mprotect");
}

static void op_mlock(char **arg) { check(mlock(at(from(arg)), bytes(arg)), "mlock"); }

static void op_munmap(char **arg)
{
	check(munmap(at(from(arg)), bytes(arg)), "munmap");
	memset(&model[from(arg)], 0xff, (to(arg) - from(arg)) * sizeof(*model));
}

/* Fills a hole left by munmap; the VMAs merge. */
static void op_fill(char **arg)
{
	check(mmap(at(from(arg)), bytes(arg), PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED, "mmap");
	memset(&model[from(arg)], 0, (to(arg) - from(arg)) * sizeof(*model));
}

/* Moves the whole area to a place that is PAGES_OFF pages after a 2 MiB boundary. */
static void op_move(char **arg)
{
	size_t off = from(arg);
	char *place = reserve(nr_pages + off) + off * PAGE;

	check(mremap(area, nr_pages * PAGE, nr_pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
		     place) != place, "mremap");
	area = place;
}

/* Forks a child that verifies its memory, writes every page, and verifies again. */
static void op_fork(char **arg)
{
	int status;
	pid_t pid = fork();

	check(pid < 0, "fork");
	if (!pid) {
		op_verify(arg);
		for (size_t i = 0; i < nr_pages; i++)
			if (model[i] && model[i] != GONE)
				write_page(i);
		op_verify(arg);
		_exit(0);
	}
	check(waitpid(pid, &status, 0) != pid, "waitpid");
	if (status) {
		fprintf(stderr, "the child ended with status %#x\n", status);
		exit(1);
	}
}

/* Registers a range for userfaultfd write protection. Protects no page, so no write waits. */
static void op_userfaultfd(char **arg)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = {
		.range = { (uintptr_t)at(from(arg)), bytes(arg) },
		.mode = UFFDIO_REGISTER_MODE_WP,
	};
	int fd = syscall(SYS_userfaultfd, 0);

	check(fd < 0 || ioctl(fd, UFFDIO_API, &api), "userfaultfd");
	check(ioctl(fd, UFFDIO_REGISTER, &range), "UFFDIO_REGISTER");
}

static void op_thp_disable(char **arg)
{
	check(prctl(PR_SET_THP_DISABLE, atoi(arg[0]), 0, 0, 0), "prctl");
}

/* Prints one JSON object: the number of pages in folios of each order. */
static void op_folios(char **arg)
{
	unsigned long pages[MAX_ORDER + 2] = {0};

	folio_histogram(at(from(arg)), bytes(arg), pages);
	printf("{");
	for (int order = 0; order <= MAX_ORDER; order++)
		if (pages[order])
			printf("\"%d\": %lu, ", order, pages[order]);
	printf("\"none\": %lu}\n", pages[MAX_ORDER + 1]);
}

/* Sleeps until a signal ends this process. */
static void op_wait(char **arg)
{
	(void)arg;
	fflush(stdout);
	pause();
}

static const struct op ops[] = {
	{ "map", 1, "PAGES", op_map },
	{ "touch", 2, "A B", op_touch },
	{ "down", 2, "A B", op_down },
	{ "every", 3, "A B STEP", op_every },
	{ "verify", 0, "", op_verify },
	{ "madvise", 3, "A B ADVICE", op_madvise },
	{ "mprotect", 3, "A B PROT", op_mprotect },
	{ "mlock", 2, "A B", op_mlock },
	{ "munmap", 2, "A B", op_munmap },
	{ "fill", 2, "A B", op_fill },
	{ "move", 1, "PAGES_OFF", op_move },
	{ "fork", 0, "", op_fork },
	{ "userfaultfd", 2, "A B", op_userfaultfd },
	{ "thp_disable", 1, "0|1", op_thp_disable },
	{ "sh", 1, "COMMAND", op_sh },
	{ "folios", 2, "A B", op_folios },
	{ "wait", 0, "", op_wait },
	{ NULL },
};

int main(int argc, char **argv) { return run_words(ops, argc, argv); }
