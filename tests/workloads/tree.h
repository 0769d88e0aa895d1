/* SPDX-License-Identifier: GPL-2.0 */
/* Loads and unloads the module, and reads and writes its files in sysfs. */
#ifndef TREE_H
#define TREE_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "basics.h"

#define ROOT	"/sys/kernel/mmpolicy"

/* Writes @text to a file by one write(). Returns 0 or an errno. */
static inline int tree_put(const char *path, const void *text, size_t len)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC), err = 0;

	if (fd < 0)
		return errno;
	if (write(fd, text, len) < 0)
		err = errno;
	close(fd);
	return err;
}

/* Reads a file without its final newline. Returns 0 or an errno. */
static inline int tree_get(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), err = 0;
	ssize_t n, len = 0;

	if (fd < 0)
		return errno;
	while ((n = read(fd, text + len, size - 1 - len)) > 0)
		len += n;
	if (n < 0)
		err = errno;
	text[len - (len && text[len - 1] == '\n')] = '\0';
	close(fd);
	return err;
}

static char *tree_text;		/* text of the snapshot in progress */
static size_t tree_len;

static inline int tree_note(const char *path, const struct stat *st, int type, struct FTW *at)
{
	char text[4096] = "";

	if (type != FTW_F || !(st->st_mode & 0400) || !strcmp(path + at->base, "lease_left_ms") ||
	    !strncmp(path, ROOT "/knobs/", strlen(ROOT "/knobs/")))
		return 0;
	if (tree_get(path, text, sizeof(text)))
		die(path);
	tree_text = realloc(tree_text, tree_len + strlen(path) + strlen(text) + 3);
	if (!tree_text)
		die("realloc");
	tree_len += sprintf(tree_text + tree_len, "%s=%s\n", path, text);
	return 0;
}

/*
 * Returns lines with the path and the text of all readable sysfs files of the module that may
 * change; "" without the module. The caller frees the text.
 */
static inline char *tree_snapshot(void)
{
	tree_text = strdup("");
	tree_len = 0;
	if (nftw(ROOT, tree_note, 16, FTW_PHYS) && errno != ENOENT)
		die(ROOT);
	return tree_text;
}

/*
 * Loads the module. The first call reads its file; later calls use the copy in memory. Returns 0
 * or an errno.
 */
static inline int module_load(const char *path, const char *params)
{
	static char *image;
	static size_t size;
	FILE *file = image ? NULL : fopen(path, "re");

	if (file) {
		fseek(file, 0, SEEK_END);
		size = ftell(file);
		rewind(file);
		image = malloc(size);
		if (!image || fread(image, 1, size, file) != size)
			die(path);
		fclose(file);
	}
	return syscall(SYS_init_module, image, size, params) ? errno : 0;
}

static inline int module_unload(void)
{
	return syscall(SYS_delete_module, "mmpolicy", O_NONBLOCK) ? errno : 0;
}

#endif /* TREE_H */
