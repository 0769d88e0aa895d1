// SPDX-License-Identifier: GPL-2.0
/*
 * freecases errno: errno of MADV_FREE on each kind of mapping, and whether refused calls left the
 * data alone.
 * freecases range MIB [SECOND_MIB]: writes to MIB, frees them with MADV_FREE, then writes to
 * SECOND_MIB more; counts which of the first pages are present or swapped out after each step.
 * freecases hog MIB: like range, but frees nothing.
 * freecases once MIB: like range, but without an earlier MADV_FREE of another page.
 * freecases told MIB: like range, with a userfaultfd that receives events of removed pages.
 * freecases wide MIB: the ticks of MADV_FREE (time stamp counter; instructions under icount) on a
 * range of 64 TB with MIB of memory at its beginning.
 * freecases sparse MIB KB: the ticks of MADV_FREE on MIB with one page in each KB, and of a second
 * call on this range.
 * Prints one JSON object.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "basics.h"
#include "ticks.h"

#define HUGE	(2UL << 20)
#define SWAPPED	(1ULL << 62)
#define PRESENT	(1ULL << 63)

static unsigned char *map(size_t size, int prot, int flags, int fd)
{
	void *area = mmap(NULL, size, prot, flags, fd, 0);

	if (area == MAP_FAILED)
		die("mmap");
	return area;
}

static bool intact(const unsigned char *area, size_t size)
{
	for (size_t i = 0; i < size; i += 512)
		if (area[i] != 0xa5)
			return false;
	return true;
}

static void try(const char *name, unsigned char *area, size_t size)
{
	int error = madvise(area, size, MADV_FREE) ? errno : 0;

	printf("\"%s\": [%d, %s], ", name, error, intact(area, size) ? "true" : "false");
}

static void try_new(const char *name, size_t size, int flags, int fd)
{
	unsigned char *area = map(size, PROT_READ | PROT_WRITE, flags, fd);

	memset(area, 0xa5, size);
	try(name, area, size);
	munmap(area, size);
}

static int file(void)
{
	char name[] = "/tmp/freecases-XXXXXX", data[16 * PAGE];
	int fd = mkstemp(name);

	memset(data, 0xa5, sizeof(data));
	if (fd < 0 || write(fd, data, sizeof(data)) != sizeof(data))
		die(name);
	unlink(name);
	return fd;
}

static void try_mixed(void)
{
	unsigned char *area = map(16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	memset(area, 0xa5, 16 * PAGE);
	munmap(area + 4 * PAGE, 4 * PAGE);
	printf("\"hole\": %d, ", madvise(area, 16 * PAGE, MADV_FREE) ? errno : 0);
	printf("\"unaligned\": %d, ", madvise(area + 1, PAGE, MADV_FREE) ? errno : 0);
	printf("\"empty\": %d}\n", madvise(area, 0, MADV_FREE) ? errno : 0);
}

static void errnos(void)
{
	const int anon = MAP_PRIVATE | MAP_ANONYMOUS;
	unsigned char *locked;
	int fd = file(), memfd = memfd_create("freecases", 0);

	printf("{");
	try("private_file_clean", map(16 * PAGE, PROT_READ, MAP_PRIVATE, fd), 16 * PAGE);
	try_new("private_file", 16 * PAGE, MAP_PRIVATE, fd);
	try_new("shared_file", 16 * PAGE, MAP_SHARED, fd);
	if (memfd < 0 || ftruncate(memfd, 16 * PAGE))
		die("memfd");
	try_new("memfd", 16 * PAGE, MAP_PRIVATE, memfd);
	try_new("shared", 16 * PAGE, MAP_SHARED | MAP_ANONYMOUS, -1);
	try_new("hugetlb", HUGE, anon | MAP_HUGETLB, -1);
	locked = map(16 * PAGE, PROT_READ | PROT_WRITE, anon, -1);
	memset(locked, 0xa5, 16 * PAGE);
	if (mlock(locked, 16 * PAGE))
		die("mlock");
	try("locked", locked, 16 * PAGE);
	try_mixed();
}

/* Writes random bytes, so that zram cannot compress the pages. */
static void fill(unsigned char *area, size_t size)
{
	uint64_t rng = SEED;

	for (size_t i = 0; i < size; i += 8) {
		next_random(&rng, 1);
		memcpy(area + i, &rng, 8);
	}
}

static void what_has_become(const unsigned char *area, size_t size)
{
	size_t swapped = 0, there = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY);

	for (size_t i = 0; i < size / PAGE; i++) {
		uint64_t entry;

		if (pread(fd, &entry, 8, ((uintptr_t)area / PAGE + i) * 8) != 8)
			die("pagemap");
		swapped += !!(entry & SWAPPED);
		there += !!(entry & PRESENT);
	}
	close(fd);
	printf("\"there\": %zu, \"swapped\": %zu", there, swapped);
}

static const int prot = PROT_READ | PROT_WRITE, anon = MAP_PRIVATE | MAP_ANONYMOUS;

/*
 * Frees a page by MADV_FREE and waits: the policy cap counts the lazily freed pages of a process
 * only after its first MADV_FREE.
 */
static void introduce(void)
{
	if (madvise(map(PAGE, prot, anon, -1), PAGE, MADV_FREE))
		die("madvise");
	usleep(300000);
}

static void range(size_t first, size_t second, bool do_free)
{
	unsigned char *area = map(first, prot, anon, -1);

	fill(area, first);
	if (do_free && madvise(area, first, MADV_FREE))
		die("madvise");
	printf("{\"pages\": %zu, \"after_call\": {", first / PAGE);
	what_has_become(area, first);
	printf("}, \"at_end\": {");
	if (second)
		fill(map(second, prot, anon, -1), second);
	what_has_become(area, first);
	printf("}}\n");
}

static void *hear(void *fd)
{
	struct uffd_msg heard;

	while (read(*(int *)fd, &heard, sizeof(heard)) == sizeof(heard))
		;
	return NULL;
}

static void told(size_t size)
{
	static int fd;
	unsigned char *area = map(size, prot, anon, -1);
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_EVENT_REMOVE };
	struct uffdio_register all = {
		.range = { (uintptr_t)area, size }, .mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	pthread_t thread;

	fill(area, size);
	fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &all))
		die("userfaultfd");
	if (pthread_create(&thread, NULL, hear, &fd) || madvise(area, size, MADV_FREE))
		die("madvise");
	printf("{\"pages\": %zu, ", size / PAGE);
	what_has_become(area, size);
	printf("}\n");
}

static void wide(size_t size)
{
	unsigned char *area = map(64UL << 40, prot, anon | MAP_NORESERVE, -1);
	uint64_t begin;

	fill(area, size);
	begin = ticks_now();
	if (madvise(area, 64UL << 40, MADV_FREE))
		die("madvise");
	printf("{\"ticks\": %llu, ", (unsigned long long)(ticks_now() - begin));
	what_has_become(area, size);
	printf("}\n");
}

static uint64_t ticks_of_free(void *area, size_t size)
{
	uint64_t begin = ticks_now();

	if (madvise(area, size, MADV_FREE))
		die("madvise");
	return ticks_now() - begin;
}

static void sparse(size_t size, size_t step)
{
	unsigned char *area = map(size, prot, anon | MAP_NORESERVE, -1);
	uint64_t ticks;

	if (madvise(area, size, MADV_NOHUGEPAGE))
		die("madvise");
	for (size_t i = 0; i < size; i += step)
		area[i] = 1;
	ticks = ticks_of_free(area, size);
	printf("{\"ticks\": [%llu, %llu]}\n", (unsigned long long)ticks,
	       (unsigned long long)ticks_of_free(area, size));
}

int main(int argc, char **argv)
{
	size_t first = argc > 2 ? strtoul(argv[2], NULL, 10) << 20 : 0;
	size_t second = argc > 3 ? strtoul(argv[3], NULL, 10) << 20 : 0;

	if (argc == 2 && !strcmp(argv[1], "errno")) {
		errnos();
		return 0;
	}
	if (!first)
		return 2;
	if (!strcmp(argv[1], "range") || !strcmp(argv[1], "wide") || !strcmp(argv[1], "sparse"))
		introduce();
	if (!strcmp(argv[1], "sparse"))
		sparse(first, second >> 10);
	else if (!strcmp(argv[1], "wide"))
		wide(first);
	else if (!strcmp(argv[1], "told"))
		told(first);
	else
		range(first, second, strcmp(argv[1], "hog"));
	return 0;
}
