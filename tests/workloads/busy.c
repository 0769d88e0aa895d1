// SPDX-License-Identifier: GPL-2.0
/*
 * busy: reads 64 MB of zeroes repeatedly, as any user may. Between two reads it is in user mode for
 * a few instructions, and it never sleeps, so the kernel takes minutes to see that it has left the
 * code that it was in.
 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "basics.h"

#define SIZE	(64UL << 20)

int main(void)
{
	int zero = open("/dev/zero", O_RDONLY);
	char *area = malloc(SIZE);

	if (zero < 0 || !area || setuid(65534))
		die("busy");
	memset(area, 1, SIZE);
	puts("held");
	fflush(stdout);
	for (;;)
		if (read(zero, area, SIZE) < 0)
			die("read");
}
