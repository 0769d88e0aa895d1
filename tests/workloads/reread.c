// SPDX-License-Identifier: GPL-2.0
/*
 * reread ROUNDS FILE...: tests that the CPU runs the code that is in memory after the page cache
 * was refilled. Each page of the files begins with a different function, "mov $n, %eax; ret". All
 * are called at one address, and before each file the page cache is dropped, so that pages of one
 * file replace those of another in memory. Prints one JSON object; "stale" counts calls that
 * returned a wrong number.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "basics.h"

static size_t calls, stale;

static void drop_page_cache(void)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);

	if (fd < 0 || write(fd, "3", 1) != 1)
		die("drop_caches");
	close(fd);
}

static void call(int fd, off_t offset)
{
	static void *place;
	uint32_t number;

	place = mmap(place, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | (place ? MAP_FIXED : 0), fd,
		     offset);
	if (place == MAP_FAILED)
		die("mmap");
	memcpy(&number, (char *)place + 1, sizeof(number));
	stale += ((uint32_t (*)(void))place)() != number;
	calls++;
}

static void call_all(const char *path)
{
	int fd = open(path, O_RDONLY);
	struct stat stat;

	if (fd < 0 || fstat(fd, &stat))
		die(path);
	for (off_t offset = 0; offset < stat.st_size; offset += PAGE)
		call(fd, offset);
	close(fd);
}

int main(int argc, char **argv)
{
	for (int round = argc > 2 ? atoi(argv[1]) : 0; round; round--)
		for (int i = 2; i < argc; i++) {
			drop_page_cache();
			call_all(argv[i]);
		}
	printf("{\"calls\": %zu, \"stale\": %zu}\n", calls, stale);
	return !calls;
}
