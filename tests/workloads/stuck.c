// SPDX-License-Identifier: GPL-2.0
/*
 * stuck known|unknown: a page fault of this process never ends. It holds mmap_lock for read, and a
 * writer waits for the lock. So every task that needs the lock waits until the process is killed.
 *
 * The fault reads a file of a FUSE file system, which this program serves. The first read fails. So
 * the kernel retries, and keeps the lock while it waits for the second answer, which never comes.
 * Then the process frees so much memory by MADV_FREE that cap refuses, and another thread calls
 * mmap(). With "known", it has used MADV_FREE before, so cap already tracks it. Prints "stuck" if
 * mmap() waits, else "not stuck".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "basics.h"

#define AREA	(4UL << 20)

static char folder[] = "/tmp/stuck-XXXXXX";
static int fuse, asked[2];	/* pipe: a byte says that the unanswered read has begun */
static pthread_barrier_t in_fault;
static volatile bool mapped;

static void reply(const struct fuse_in_header *in, int error, const void *data, size_t size)
{
	struct { struct fuse_out_header head; char data[256]; } out = {
		{ sizeof(out.head) + size, -error, in->unique }
	};

	memcpy(out.data, data, size);
	if (write(fuse, &out, out.head.len) != out.head.len)
		die("reply");
}

static struct fuse_attr attributes(uint64_t node)
{
	return (struct fuse_attr){
		.ino = node, .nlink = 1, .size = PAGE,
		.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644,
	};
}

static void answer(const struct fuse_in_header *in)
{
	static int reads;

	switch (in->opcode) {
	case FUSE_INIT:
		return reply(in, 0, &(struct fuse_init_out){ .major = FUSE_KERNEL_VERSION,
			     .minor = FUSE_KERNEL_MINOR_VERSION, .max_write = PAGE },
			     sizeof(struct fuse_init_out));
	case FUSE_LOOKUP:
		return reply(in, 0, &(struct fuse_entry_out){ .nodeid = 2, .entry_valid = 1000,
			     .attr_valid = 1000, .attr = attributes(2) },
			     sizeof(struct fuse_entry_out));
	case FUSE_GETATTR:
		return reply(in, 0, &(struct fuse_attr_out){ .attr_valid = 1000,
			     .attr = attributes(in->nodeid) }, sizeof(struct fuse_attr_out));
	case FUSE_OPEN:
		return reply(in, 0, &(struct fuse_open_out){}, sizeof(struct fuse_open_out));
	case FUSE_READ:
		if (!reads++)
			return reply(in, EIO, NULL, 0);
		if (write(asked[1], "", 1) != 1)
			die("pipe");
		return;
	case FUSE_FORGET:
		return;
	default:
		return reply(in, ENOSYS, NULL, 0);
	}
}

/* Answers requests of the FUSE file system until this process is killed. */
static void serve(void)
{
	static _Alignas(8) char request[1 << 16];

	while (read(fuse, request, sizeof(request)) > 0)
		answer((struct fuse_in_header *)request);
	_exit(0);
}

static void start_server(void)
{
	char options[64];

	fuse = open("/dev/fuse", O_RDWR);
	if (fuse < 0 || !mkdtemp(folder) || pipe(asked))
		die("/dev/fuse");
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
	if (mount("stuck", folder, "fuse", 0, options))
		die("mount");
	if (!fork())
		serve();
	close(fuse);
}

static void *fault(void *unused)
{
	char path[64];
	volatile char *page;
	int fd;

	snprintf(path, sizeof(path), "%s/file", folder);
	fd = open(path, O_RDONLY);
	page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	if (fd < 0 || page == MAP_FAILED)
		die(path);
	(void)*page;
	return unused;
}

static void *map(void *unused)
{
	pthread_barrier_wait(&in_fault);
	mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mapped = true;
	return unused;
}

static void free_lazily(char *area, size_t size)
{
	if (madvise(area, size, MADV_FREE))
		die("madvise");
}

int main(int argc, char **argv)
{
	static const char *const said[] = { "stuck\n", "not stuck\n" };
	pthread_t faulting, mapping;
	char *area;

	start_server();
	area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		die("mmap");
	memset(area, 1, AREA);
	if (argc > 1 && !strcmp(argv[1], "known"))
		free_lazily(area, PAGE);
	usleep(300000);
	pthread_barrier_init(&in_fault, NULL, 2);
	if (pthread_create(&mapping, NULL, map, NULL) ||
	    pthread_create(&faulting, NULL, fault, NULL) || read(asked[0], area, 1) != 1)
		die("fault");
	free_lazily(area + PAGE, AREA - PAGE);
	pthread_barrier_wait(&in_fault);
	usleep(300000);
	/* From here on, no stdio and no page fault: both may need mmap_lock. */
	if (write(1, said[mapped], strlen(said[mapped])) < 0)
		return 1;
	pthread_join(faulting, NULL);
	return 0;
}
