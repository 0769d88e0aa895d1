// SPDX-License-Identifier: GPL-2.0
/*
 * scramble SEED OPERATIONS: random operations on an anonymous area, in a tree of processes with two
 * threads each, with a copy of every byte. The copy has small pages (MADV_NOHUGEPAGE) and no other
 * writer. Exits with status 1 if memory and copy differ. Equal seeds give equal operations, except
 * for the timing of threads and processes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "basics.h"

#define PAGES		1024UL		/* the area: half a page table, a whole one, a half */
#define MAX_RUN		48UL
#define MAX_DEPTH	4
#define OTHERS		(PAGE - 2)	/* offset in a page: byte that the other thread writes */
#define PMD		(2UL << 20)

/* Interface of the kernel's gup_test, which pins pages long-term. */
struct longterm { uint64_t addr, size; uint32_t flags; };
#define LONGTERM_START	_IOW('g', 7, struct longterm)
#define LONGTERM_STOP	_IO('g', 8)
#define LONGTERM_READ	_IOW('g', 9, uint64_t)

static unsigned char *area, *copy;
static unsigned char *scratch;		/* MAX_RUN pages, outside the area */
static bool lazy[PAGES];		/* pages freed by MADV_FREE: their contents are old or 0 */
static uint64_t rng;
static int depth, mem_fd, gup_fd, disk_fd, pagemap_fd, self_fd;
static const char *operation = "none";
static pthread_rwlock_t lock;		/* while held for writing, the other thread waits */
static bool stop, soft_dirty;
static size_t hot;			/* first page of the current operation */
/* counts over all processes: [0] operations, [1] pins */
static long *done;

static size_t below(size_t n) { return next_random(&rng, n); }

static void failed(const char *what)
{
	fprintf(stderr, "%s, in %s, depth %d: %s\n", what, operation, depth, strerror(errno));
	_exit(2);
}

static void check(bool ok, const char *what)
{
	if (!ok)
		failed(what);
}

/* The pages of an operation: @nr from @first on. */
struct run { size_t first, nr; };

/* The latest operations, to explain a difference between memory and copy. */
static struct { const char *operation; struct run run; } past[512];
static size_t nr_past;

static struct run noted(struct run r)
{
	past[nr_past % 512].operation = operation;
	past[nr_past++ % 512].run = r;
	return r;
}

static struct run any_run(size_t longest)
{
	struct run r = { below(PAGES), 1 + below(longest) };

	if (!below(3))
		r.first &= -16UL;
	if (r.nr > PAGES - r.first)
		r.nr = PAGES - r.first;
	__atomic_store_n(&hot, r.first, __ATOMIC_RELAXED);
	return noted(r);
}

static unsigned char *at(struct run r) { return area + r.first * PAGE; }
static unsigned char *copy_of(struct run r) { return copy + r.first * PAGE; }
static size_t bytes(struct run r) { return r.nr * PAGE; }

static uint64_t entry_of(const void *address)
{
	uint64_t entry;

	check(pread(pagemap_fd, &entry, 8, (uintptr_t)address / PAGE * 8) == 8, "pagemap");
	return entry;
}

static void tell_past(size_t page)
{
	size_t i = nr_past > 512 ? nr_past - 512 : 0;

	for (; i < nr_past; i++) {
		struct run r = past[i % 512].run;

		if (page >= r.first && page < r.first + r.nr)
			fprintf(stderr, "%zu ago: %s, pages %zu to %zu\n", nr_past - i,
				past[i % 512].operation, r.first, r.first + r.nr - 1);
	}
}

static void differs(size_t offset)
{
	size_t page = offset / PAGE, nr = 0;

	for (size_t b = page * PAGE; b < (page + 1) * PAGE; b++)
		nr += area[b] != copy[b];
	fprintf(stderr, "page %zu, byte %zu holds %#x, not %#x, after %s, depth %d\n", page,
		offset % PAGE, area[offset], copy[offset], operation, depth);
	fprintf(stderr, "%zu bytes of it differ; pagemap %#lx, of the copy %#lx; lazy %d\n", nr,
		entry_of(area + page * PAGE), entry_of(copy + page * PAGE), lazy[page]);
	tell_past(page);
	_exit(1);
}

/* Returns true if two pages are equal, except for the byte that the other thread writes. */
static bool same_page(const unsigned char *a, const unsigned char *b)
{
	return !memcmp(a, b, OTHERS) && a[PAGE - 1] == b[PAGE - 1];
}

static bool same_pages(const unsigned char *a, const unsigned char *b, size_t nr)
{
	for (size_t i = 0; i < nr; i++)
		if (!same_page(a + i * PAGE, b + i * PAGE))
			return false;
	return true;
}

/* Returns true if a page was freed by MADV_FREE and is now empty, which is allowed. */
static bool emptied(size_t page)
{
	static const unsigned char zero[PAGE];

	return lazy[page] && same_page(area + page * PAGE, zero);
}

static void compare(struct run r)
{
	for (size_t i = r.first; i < r.first + r.nr; i++) {
		if (same_page(area + i * PAGE, copy + i * PAGE) || emptied(i))
			continue;
		for (size_t b = i * PAGE; b < (i + 1) * PAGE; b++)
			if (area[b] != copy[b] && b % PAGE != OTHERS)
				differs(b);
	}
}

/*
 * Writes to a page that MADV_FREE has freed, so the kernel no longer frees it. Its other bytes are
 * kept or are all 0 now; updates the copy with what is true.
 */
static void settle(size_t page)
{
	volatile unsigned char *first = area + page * PAGE;

	if (!lazy[page])
		return;
	*first = 1;
	lazy[page] = false;
	if (!first[PAGE - 1])
		memset(copy + page * PAGE, 0, PAGE);
	copy[page * PAGE] = 1;
}

static void settle_run(struct run r)
{
	for (size_t i = r.first; i < r.first + r.nr; i++)
		settle(i);
}

static void emptied_by(struct run r)
{
	memset(copy_of(r), 0, bytes(r));
	memset(lazy + r.first, 0, r.nr);
}

/* Writes new bytes for the run to scratch and to the copy; the last byte of a page is not 0. */
static void make_bytes(struct run r)
{
	uint64_t *word = (uint64_t *)scratch, first = below(~0UL);

	for (size_t i = 0; i < bytes(r) / 8; i++)
		word[i] = (first + i * SEED) | 1UL << 56;
	memcpy(copy_of(r), scratch, bytes(r));
}

/* Writes one random byte in each page of the run; the other bytes must stay. */
static void write_some(struct run r)
{
	for (size_t i = r.first; i < r.first + r.nr; i++) {
		size_t byte = i * PAGE + below(OTHERS);

		settle(i);
		area[byte] = copy[byte] = below(256);
	}
}

static void write_whole(struct run r)
{
	settle_run(r);
	make_bytes(r);
	memcpy(at(r), scratch, bytes(r));
}

static void op_write(void) { write_whole(any_run(below(4) ? 4 : MAX_RUN)); }
static void op_bytes(void) { write_some(any_run(below(4) ? 8 : MAX_RUN)); }
static void op_read(void) { compare(any_run(MAX_RUN)); }

static void op_by_kernel(void)
{
	struct run r = any_run(16);
	struct iovec from = { scratch, bytes(r) }, to = { at(r), bytes(r) };

	settle_run(r);
	compare(r);		/* so that this CPU has the pages in its TLB */
	make_bytes(r);
	check(process_vm_writev(getpid(), &from, 1, &to, 1, 0) == (ssize_t)bytes(r), "writev");
	compare(r);
}

/* Writes to a read-only area through /proc/self/mem, as ptrace does. */
static void op_forced(void)
{
	struct run r = any_run(8);

	settle_run(r);
	make_bytes(r);
	check(!mprotect(at(r), bytes(r), PROT_READ), "mprotect");
	check(pwrite(mem_fd, scratch, bytes(r), (off_t)(uintptr_t)at(r)) == (ssize_t)bytes(r),
	      "/proc/self/mem");
	compare(r);
	check(!mprotect(at(r), bytes(r), PROT_READ | PROT_WRITE), "mprotect");
}

static void op_protect(void)
{
	struct run r = any_run(MAX_RUN);

	check(!mprotect(at(r), bytes(r), below(2) ? PROT_READ : PROT_NONE), "mprotect");
	check(!mprotect(at(r), bytes(r), PROT_READ | PROT_WRITE), "mprotect");
	write_some(r);
}

static void op_drop(void)
{
	struct run r = any_run(below(8) ? 8 : MAX_RUN);

	check(!madvise(at(r), bytes(r), MADV_DONTNEED), "MADV_DONTNEED");
	emptied_by(r);
}

/*
 * Drops several ranges by one process_madvise(), in any order and possibly overlapping. Does
 * nothing on kernels that do not support that.
 */
static void op_drop_many(void)
{
	struct run runs[8];
	struct iovec ranges[8];
	size_t nr = 1 + below(8), sum = 0;
	ssize_t freed;

	for (size_t i = 0; i < nr; sum += bytes(runs[i++])) {
		runs[i] = any_run(8);
		ranges[i] = (struct iovec){ at(runs[i]), bytes(runs[i]) };
	}
	freed = syscall(SYS_process_madvise, self_fd, ranges, nr, MADV_DONTNEED, 0);
	if (freed < 0 && errno == EINVAL)
		return;
	check(freed == (ssize_t)sum, "process_madvise");
	for (size_t i = 0; i < nr; i++)
		emptied_by(runs[i]);
}

static void op_free(void)
{
	struct run r = any_run(32);

	write_whole(r);		/* so that an empty page differs from its contents */
	check(!madvise(at(r), bytes(r), MADV_FREE), "MADV_FREE");
	memset(lazy + r.first, 1, r.nr);
}

/* Gives advice that must leave the bytes unchanged, while the other thread writes. */
static void op_advise(void)
{
	static const int advices[] = {
		MADV_PAGEOUT, MADV_PAGEOUT, MADV_COLD, MADV_WILLNEED, MADV_HUGEPAGE,
		MADV_NOHUGEPAGE, MADV_MERGEABLE, MADV_UNMERGEABLE,
		22 /* MADV_POPULATE_READ */, 23 /* MADV_POPULATE_WRITE */, 25 /* MADV_COLLAPSE */,
	};
	int advice = advices[below(sizeof(advices) / sizeof(*advices))];
	struct run r = any_run(below(4) ? MAX_RUN : PAGES);

	if (advice == 25)
		r = (struct run){ 0, PAGES };
	if (madvise(at(r), bytes(r), advice))
		check(errno == EINVAL || errno == EAGAIN || errno == ENOMEM || errno == EBUSY,
		      "madvise");
	compare(any_run(MAX_RUN));
}

static void map_fresh(struct run r)
{
	check(mmap(at(r), bytes(r), PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == at(r), "mmap");
	emptied_by(r);
}

/* Moves pages within the area, over existing ones. */
static void op_move(void)
{
	struct run from = any_run(MAX_RUN), to = { below(PAGES - MAX_RUN), from.nr };

	if (from.first < to.first + to.nr && to.first < from.first + from.nr)
		return;
	settle_run(from);
	noted(to);
	if (mremap(at(from), bytes(from), bytes(from), MREMAP_MAYMOVE | MREMAP_FIXED, at(to)) ==
	    at(to)) {
		memcpy(copy_of(to), copy_of(from), bytes(from));
		memset(lazy + to.first, 0, to.nr);
		map_fresh(from);
		return;
	}
	/* @from spans two VMAs; @to is unmapped all the same */
	check(errno == EFAULT, "mremap");
	map_fresh(to);
}

static void op_fresh(void) { map_fresh(any_run(below(16) ? MAX_RUN : PAGES)); }

static void inherit(struct run r, int advice)
{
	check(!madvise(copy, PAGES * PAGE, advice), "copy");
	check(!madvise(area, r.first * PAGE, advice), "before");
	r.first += r.nr;
	check(!madvise(at(r), (PAGES - r.first) * PAGE, advice), "behind");
}

/*
 * Forks. In three cases of four, the child gets only this run of the area (MADV_DONTFORK for the
 * rest).
 */
static pid_t fork_for(struct run r)
{
	bool alone = below(4);
	pid_t pid;

	if (alone)
		inherit(r, MADV_DONTFORK);
	pid = fork();
	if (alone && pid)
		inherit(r, MADV_DOFORK);
	check(pid >= 0, "fork");
	return pid;
}

/* Pins pages, as a device does: after a fork and writes, they must still be the process's pages. */
static void op_pin(void)
{
	struct run r = any_run(16);
	struct longterm pin = { (uintptr_t)at(r), bytes(r), below(4) };
	uint64_t to = (uintptr_t)scratch;

	settle_run(r);
	if (gup_fd < 0 || ioctl(gup_fd, LONGTERM_START, &pin))
		return;		/* another process has pinned pages at the moment */
	done[1]++;
	pid_t pid = fork_for(r);

	if (!pid) {
		memset(at(r), 1, bytes(r));
		_exit(0);
	}
	write_some(r);
	check(pid > 0 && waitpid(pid, NULL, 0) == pid, "fork");
	write_some(r);
	check(!ioctl(gup_fd, LONGTERM_READ, &to), "LONGTERM_READ");
	check(!ioctl(gup_fd, LONGTERM_STOP), "LONGTERM_STOP");
	if (!same_pages(scratch, copy_of(r), r.nr))
		failed("pinned pages are no longer the mapped ones");
}

/* Writes pages to a disk by direct I/O, and reads them back into other pages. */
static void op_direct(void)
{
	struct run r = any_run(16), to = { below(PAGES - 16), r.nr };
	off_t place = depth * 16L * PAGE;

	if (disk_fd < 0)
		return;
	settle_run(r);
	check(pwrite(disk_fd, at(r), bytes(r), place) == (ssize_t)bytes(r), "direct write");
	memcpy(scratch, copy_of(r), bytes(r));
	settle_run(noted(to));
	check(pread(disk_fd, at(to), bytes(r), place) == (ssize_t)bytes(r), "direct read");
	memcpy(copy_of(to), scratch, bytes(r));
}

/* A child leaves pages in a pipe, and exits; the parent's writes must not appear there. */
static void op_splice(void)
{
	struct run r = any_run(8);
	int end[2], status;
	pid_t pid;

	settle_run(r);
	check(!pipe(end), "pipe");
	pid = fork_for(r);
	if (!pid) {
		struct iovec from = { at(r), bytes(r) };

		_exit(vmsplice(end[1], &from, 1, 0) != (ssize_t)bytes(r));
	}
	check(pid > 0 && waitpid(pid, &status, 0) == pid && !status, "vmsplice");
	memset(at(r), 0xee, bytes(r));
	for (size_t done = 0; done < bytes(r);) {
		ssize_t n = read(end[0], scratch + done, bytes(r) - done);

		check(n > 0, "read");
		done += n;
	}
	if (!same_pages(scratch, copy_of(r), r.nr))
		failed("a later write shows in data that a child has sent by vmsplice()");
	memcpy(at(r), copy_of(r), bytes(r));
	check(!close(end[0]) && !close(end[1]), "close");
}

/*
 * Checks a bit of the pagemap entry of each page in @r: it must be set in the pages outside of @but
 * if @of_others, else in the pages of @but.
 */
static void check_bit(struct run r, int bit, struct run but, bool of_others)
{
	for (size_t i = r.first; i < r.first + r.nr; i++) {
		bool other = i < but.first || i >= but.first + but.nr;

		if ((entry_of(area + i * PAGE) >> bit & 1) == (other == of_others))
			continue;
		fprintf(stderr, "page %zu of %zu to %zu, %zu of them written, bit %d: %#lx\n", i,
			r.first, r.first + r.nr - 1, but.nr, bit, entry_of(area + i * PAGE));
		failed("a write was missed, or seen where there was none");
	}
}

/* Shares pages with a child that exits at once. Excludes them from KSM, which drops their bits. */
static void share_and_end(struct run r)
{
	pid_t pid;

	check(!madvise(at(r), bytes(r), MADV_UNMERGEABLE), "MADV_UNMERGEABLE");
	pid = fork_for(r);
	if (!pid)
		_exit(0);
	check(pid > 0 && waitpid(pid, NULL, 0) == pid, "fork");
}

/* Userfaultfd write protection with WP_ASYNC: the kernel must lift it at each write. */
static void op_watch(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = 1 << 15 /* WP_ASYNC */ };
	struct run r = any_run(MAX_RUN), some = { r.first + below(r.nr), 1 };
	struct uffdio_register reg = { .range = { (uintptr_t)at(r), bytes(r) },
				       .mode = UFFDIO_REGISTER_MODE_WP };
	struct uffdio_writeprotect wp = { reg.range, UFFDIO_WRITEPROTECT_MODE_WP };
	int fd = syscall(SYS_userfaultfd, 0);

	check(fd >= 0 && !ioctl(fd, UFFDIO_API, &api), "userfaultfd");
	settle_run(r);
	share_and_end(r);
	if (ioctl(fd, UFFDIO_REGISTER, &reg)) {
		check(!close(fd), "close");
		return;
	}
	check(!ioctl(fd, UFFDIO_WRITEPROTECT, &wp), "UFFDIO_WRITEPROTECT");
	write_some(some);
	check_bit(r, 57, some, true);
	write_some(r);
	check_bit(r, 57, r, true);
	check(!close(fd), "close");
}

/* Clears soft-dirty bits: each write afterwards must set the bit of its page. */
static void op_dirty(void)
{
	struct run r = any_run(MAX_RUN);
	int fd = open("/proc/self/clear_refs", O_WRONLY);

	share_and_end(r);
	check(fd >= 0 && write(fd, "4", 1) == 1 && !close(fd), "clear_refs");
	write_some(r);
	if (soft_dirty)
		check_bit(r, 55, r, false);
}

static void op_compact(void)
{
	int fd = below(16) ? -1 : open("/proc/sys/vm/compact_memory", O_WRONLY);

	if (fd >= 0)
		check(write(fd, "1", 1) == 1 && !close(fd), "compact_memory");
}

static void live(long operations);

static void open_own(void)
{
	mem_fd = open("/proc/self/mem", O_RDWR);
	pagemap_fd = open("/proc/self/pagemap", O_RDONLY);
	self_fd = syscall(SYS_pidfd_open, getpid(), 0);
	check(mem_fd >= 0 && pagemap_fd >= 0 && self_fd >= 0, "/proc/self");
}

static void op_fork(void)
{
	uint64_t seed = below(~0UL) | 1;
	pid_t pid;
	int status;

	if (depth == MAX_DEPTH)
		return;
	pid = fork();
	check(pid >= 0, "fork");
	if (!pid) {
		depth++;
		rng = seed;
		close(mem_fd);
		close(pagemap_fd);
		close(self_fd);
		open_own();
		live(20 + below(100));
		_exit(0);
	}
	for (long n = below(4) * 16; n--;)	/* while the child lives */
		op_bytes();
	check(waitpid(pid, &status, 0) == pid, "waitpid");
	if (status)
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
}

static const struct op {
	const char *name;
	void (*run)(void);
	int often;
	bool alone;	/* the other thread must wait */
} ops[] = {
	{ "write", op_write, 24 },
	{ "bytes", op_bytes, 24 },
	{ "read", op_read, 16 },
	{ "by kernel", op_by_kernel, 4 },
	{ "advise", op_advise, 6 },
	{ "compact", op_compact, 1 },
	{ "forced", op_forced, 2, true },
	{ "protect", op_protect, 3, true },
	{ "drop", op_drop, 5 },
	{ "drop many", op_drop_many, 1 },
	{ "free", op_free, 2 },
	{ "move", op_move, 3, true },
	{ "fresh", op_fresh, 2 },
	{ "pin", op_pin, 2 },
	{ "direct", op_direct, 2 },
	{ "splice", op_splice, 3 },
	{ "watch", op_watch, 2, true },
	{ "dirty", op_dirty, 1 },
	{ "fork", op_fork, 2 },
};

static const struct op *any_op(void)
{
	const struct op *op = ops;
	int sum = 0, i;

	for (i = 0; i < (int)(sizeof(ops) / sizeof(*ops)); i++)
		sum += ops[i].often;
	for (sum = below(sum); sum >= op->often; op++)
		sum -= op->often;
	return op;
}

static uint64_t microseconds(void)
{
	struct timespec now;

	check(!clock_gettime(CLOCK_MONOTONIC, &now), "clock_gettime");
	return now.tv_sec * 1000000ULL + now.tv_nsec / 1000;
}

/*
 * The other thread: it writes everywhere, and often nearby, to bytes that are not compared. It must
 * not read them: if the emulator finds a page that is just being unmapped, it may read from that
 * and write to the next one, which no processor does.
 *
 * It sleeps four times as long as it works, because each process of the tree has such a thread,
 * also while it waits for a child.
 */
static void *neighbour(void *unused)
{
	uint64_t random = SEED, begin;
	size_t page;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		pthread_rwlock_rdlock(&lock);
		begin = microseconds();
		for (int i = 0; i < 8; i++) {
			page = i % 2 ? next_random(&random, PAGES) :
			       __atomic_load_n(&hot, __ATOMIC_RELAXED) + next_random(&random, 16);
			*(volatile unsigned char *)(area + page % PAGES * PAGE + OTHERS) = i;
		}
		begin = microseconds() - begin;
		pthread_rwlock_unlock(&lock);
		usleep(4 * begin + 50);
	}
	return unused;
}

static void one_operation(void)
{
	const struct op *op = any_op();

	operation = op->name;
	if (op->alone)
		check(!pthread_rwlock_wrlock(&lock), "rwlock");
	op->run();
	if (op->alone)
		check(!pthread_rwlock_unlock(&lock), "rwlock");
	compare(any_run(4));
}

static void live(long operations)
{
	pthread_t thread;

	stop = false;
	check(!pthread_rwlock_init(&lock, NULL), "rwlock");
	check(!pthread_create(&thread, NULL, neighbour, NULL), "pthread_create");
	for (; operations--; __atomic_fetch_add(done, 1, __ATOMIC_RELAXED))
		one_operation();
	stop = true;
	check(!pthread_join(thread, NULL), "pthread_join");
	compare((struct run){ 0, PAGES });
}

static void *map(size_t size, int flags)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_NORESERVE | flags,
		       -1, 0);

	check(p != MAP_FAILED, "mmap");
	return p;
}

static void setup(const char *disk)
{
	area = map(PAGES * PAGE + 2 * PMD, MAP_PRIVATE);
	area = (void *)((((uintptr_t)area + PMD - 1) & ~(PMD - 1)) + PMD / 2);
	copy = map(PAGES * PAGE, MAP_PRIVATE);
	scratch = map(MAX_RUN * PAGE, MAP_PRIVATE);
	check(!madvise(copy, PAGES * PAGE, MADV_NOHUGEPAGE), "MADV_NOHUGEPAGE");
	check(!madvise(scratch, MAX_RUN * PAGE, MADV_NOHUGEPAGE), "MADV_NOHUGEPAGE");
	done = map(PAGE, MAP_SHARED);
	gup_fd = open("/sys/kernel/debug/gup_test", O_RDWR);
	disk_fd = disk ? open(disk, O_RDWR | O_DIRECT) : -1;
	check(!disk || disk_fd >= 0, disk);
	open_own();
	area[0] = copy[0] = 1;
	soft_dirty = entry_of(area) >> 55 & 1;
}

int main(int argc, char **argv)
{
	long operations = argc > 2 ? atol(argv[2]) : 0;

	if (argc < 3 || operations < 1) {
		fprintf(stderr, "usage: scramble SEED OPERATIONS [DISK]\n");
		return 2;
	}
	rng = (strtoull(argv[1], NULL, 0) * SEED) | 1;
	setup(argv[3]);
	while (*done < operations)
		live(1000);
	printf("{\"operations\": %ld, \"soft_dirty\": %d, \"pins\": %ld}\n", *done, soft_dirty,
	       done[1]);
	return 0;
}
