/* SPDX-License-Identifier: GPL-2.0 */
/* Maps aligned anonymous areas, and pins memory. */
#ifndef AREAS_H
#define AREAS_H

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "folios.h"

#define PMD_PAGES	512UL
#define PMD		(PMD_PAGES * PAGE)
#define MAX_BUFFERS	(1 << 14)	/* buffers that one io_uring can register */

static inline void check(int failed, const char *what)
{
	if (failed)
		die(what);
}

/*
 * Maps an area aligned to 2 MiB, with free address space around it, so no other
 * VMA is merged into it. @advice is for madvise(); below 0: none.
 */
static inline void *map_flags(size_t bytes, int advice, int flags)
{
	char *p = mmap(NULL, bytes + 2 * PMD, PROT_READ | PROT_WRITE,
		       flags | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	check(p == MAP_FAILED, "mmap");
	if (advice >= 0)
		check(madvise(p, bytes + 2 * PMD, advice), "madvise");
	return p + PMD - (uintptr_t)p % PMD;
}

static inline void *map(size_t bytes, int advice) { return map_flags(bytes, advice, MAP_PRIVATE); }

/* Pins memory long-term, as buffers of io_uring. Faults in missing pages. */
static inline void pin_some(const struct iovec *buffers, unsigned int n)
{
	struct io_uring_params params = {0};
	int ring = syscall(SYS_io_uring_setup, 1, &params);

	check(ring < 0 || syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS,
				  buffers, n), "io_uring");
}

#endif /* AREAS_H */
