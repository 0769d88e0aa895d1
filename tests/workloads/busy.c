// SPDX-License-Identifier: GPL-2.0
/*
 * busy: reads 1 GB of random bytes at a time, as any user may. Each read takes seconds, without
 * sleeping, so the kernel sees late that the process has left the code that it was in. A kernel
 * with lazy preemption sees that at the end of nearly each call, so calls must not be short.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "basics.h"

#define SIZE	(1UL << 20)
#define TIMES	1024

int main(void)
{
	int random = open("/dev/urandom", O_RDONLY);
	char *area = malloc(SIZE);
	struct iovec into[TIMES];

	if (random < 0 || !area || setuid(65534))
		die("busy");
	memset(area, 1, SIZE);
	for (int i = 0; i < TIMES; i++)
		into[i] = (struct iovec){ area, SIZE };
	puts("held");
	fflush(stdout);
	for (;;)
		if (readv(random, into, TIMES) < 0)
			die("readv");
}
