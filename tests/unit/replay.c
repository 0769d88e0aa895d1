// SPDX-License-Identifier: GPL-2.0
#include <stdio.h>
#include <stdlib.h>

#include "replay.h"

char *read_text(const char *path)
{
	FILE *file = fopen(path, "r");
	size_t size = 0, got;
	char *text = NULL;

	if (!file) {
		perror(path);
		abort();
	}
	do {
		text = realloc(text, size + (1 << 20) + 1);
		got = fread(text + size, 1, 1 << 20, file);
		size += got;
	} while (got);
	fclose(file);
	text[size] = '\0';
	return text;
}

/* Replays a line that begins with a letter: a new VMA, munmap() or mremap(). Returns its end. */
static char *other_event(struct sim *sim, char *line)
{
	char kind = *line++;
	unsigned long a = strtoul(line, &line, 10), b = strtoul(line, &line, 10);

	if (kind == 'v')
		sim_vma(sim, a, a + b);
	else if (kind == 'u')
		sim_unmap(sim, a, b);
	else if (kind == 'm')
		sim_move(sim, a, b, strtoul(line, &line, 10));
	else
		abort();
	return line;
}

void replay(struct sim *sim, const char *recording)
{
	char *line = (char *)recording;
	unsigned long page = 0;

	sim->crowded = true;
	while (*line) {
		if (*line >= 'a') {
			line = other_event(sim, line);
		} else {
			page += strtol(line, &line, 10);
			sim_touch(sim, page);
		}
		if (*line++ != '\n')
			abort();
	}
}
