// SPDX-License-Identifier: GPL-2.0
/*
 * busy: reads random bytes, 1 GB per system call, as an unprivileged user. Each call takes seconds
 * and does not sleep. So RCU tasks, for which ftrace waits, sees late that the process has left the
 * kernel code that it was in. With lazy preemption, nearly each end of a call shows that, so calls
 * must be long.
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
