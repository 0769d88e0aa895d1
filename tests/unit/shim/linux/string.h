/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_STRING_H
#define SHIM_STRING_H

#include <string.h>

#include <linux/mm_types.h>

/* Returns true if two strings are equal; one of them may end with a newline. */
static inline bool sysfs_streq(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return !strcmp(a, b) || (!*a && !strcmp(b, "\n")) || (!*b && !strcmp(a, "\n"));
}

static inline int match_string(const char *const *array, size_t n, const char *string)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(array[i], string))
			return i;
	return -1;
}

#endif /* SHIM_STRING_H */
