// SPDX-License-Identifier: GPL-2.0
/*
 * uffd KIND THREADS: each thread waits in a page fault for a userfaultfd that never resolves it, as
 * if its handler had died.
 *
 *	huge	the first write to an empty range of PMD size
 *	small	the first write to a page next to a present one
 *	read	the first read of a page next to a present one
 *	wp	a write to a protected page
 *	minor	a read of a page that the memfd has, but that is not mapped
 *	fork	like small, in a child that has inherited the userfaultfd
 *
 * Prints "held" once all of them wait, and ends when it is killed. It gives up root first, except
 * for fork, which the kernel permits to root only.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basics.h"

#define RANGE	(2UL << 20)

static const char *kind;
static int uffd;

static bool is(const char *name)
{
	return !strcmp(kind, name);
}

static void ask(unsigned long request, void *argument, const char *what)
{
	if (ioctl(uffd, request, argument))
		die(what);
}

/* Maps @size bytes aligned to PMD size: an empty range of PMD size per thread. */
static char *mapped(size_t size)
{
	char *area = mmap(NULL, size + RANGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (area == MAP_FAILED)
		die("mmap");
	return area + (-(uintptr_t)area & (RANGE - 1));
}

static char *shared(size_t size)
{
	int fd = memfd_create("uffd", 0);
	char *area;

	if (fd < 0 || ftruncate(fd, size))
		die("memfd_create");
	area = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (area == MAP_FAILED)
		die("mmap");
	memset(area, 1, size);
	if (madvise(area, size, MADV_DONTNEED))
		die("madvise");
	return area;
}

static void open_uffd(void)
{
	struct uffdio_api api = { .api = UFFD_API };

	if (is("fork"))
		api.features = UFFD_FEATURE_EVENT_FORK;
	else if (setuid(65534))
		die("setuid");
	uffd = syscall(SYS_userfaultfd, O_CLOEXEC | (is("fork") ? 0 : UFFD_USER_MODE_ONLY));
	if (uffd < 0)
		die("userfaultfd");
	ask(UFFDIO_API, &api, "UFFDIO_API");
}

static void arm(char *area, size_t size)
{
	struct uffdio_range range = { .start = (uintptr_t)area, .len = size };
	struct uffdio_register reg = {
		.range = range,
		.mode = is("wp") ? UFFDIO_REGISTER_MODE_WP :
			is("minor") ? UFFDIO_REGISTER_MODE_MINOR : UFFDIO_REGISTER_MODE_MISSING,
	};

	ask(UFFDIO_REGISTER, &reg, "UFFDIO_REGISTER");
	if (is("wp"))
		ask(UFFDIO_WRITEPROTECT, &(struct uffdio_writeprotect){
			.range = range, .mode = UFFDIO_WRITEPROTECT_MODE_WP }, "protect");
}

static void *wait_in_fault(void *range)
{
	volatile char *page = (char *)range + (is("huge") || is("wp") ? 0 : 5 * PAGE);

	if (is("read") || is("minor"))
		return (void *)(uintptr_t)*page;
	*page = 1;
	return NULL;
}

/* Returns the next event of the userfaultfd. */
static struct uffd_msg event(void)
{
	struct pollfd ready = { .fd = uffd, .events = POLLIN };
	struct uffd_msg message;

	poll(&ready, 1, -1);
	if (read(uffd, &message, sizeof(message)) != sizeof(message))
		die("read");
	return message;
}

/*
 * Calls fork() in a thread of its own, as fork() waits until the main thread has read its event
 * from the userfaultfd.
 */
static void *fork_and_wait(void *range)
{
	if (!fork()) {
		wait_in_fault(range);
		_exit(0);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int i, threads = argc > 2 ? atoi(argv[2]) : 0;
	size_t size = threads * RANGE;
	pthread_attr_t attributes;
	pthread_t thread;
	char *area;

	if (!threads)
		return 2;
	kind = argv[1];
	open_uffd();
	area = is("minor") ? shared(size) : mapped(size);
	for (i = 0; i < threads && !is("huge"); i++)
		area[i * RANGE] = 1;
	arm(area, size);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 64 << 10);
	for (i = 0; i < threads; i++)
		if (pthread_create(&thread, &attributes, is("fork") ? fork_and_wait : wait_in_fault,
				   area + i * RANGE))
			die("pthread_create");
	for (i = 0; i < threads;) {
		struct uffd_msg message = event();

		if (message.event == UFFD_EVENT_FORK)
			uffd = message.arg.fork.ufd;
		else
			i++;
	}
	puts("held");
	fflush(stdout);
	pause();
	return 0;
}
