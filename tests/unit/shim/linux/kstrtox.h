/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_KSTRTOX_H
#define SHIM_KSTRTOX_H

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <linux/mm_types.h>

/* The kernel's functions are stricter than strtoull(): only digits, and one newline at the end. */
static inline int shim_digits(const char *s, unsigned int base, u64 *value)
{
	char digits[] = "0123456789";
	size_t n;

	digits[base] = '\0';	/* at most 10 */
	n = strspn(s, digits);
	errno = 0;
	*value = strtoull(s, NULL, base);
	if (!n || errno)
		return n ? -ERANGE : -EINVAL;
	return s[n] && strcmp(s + n, "\n") ? -EINVAL : 0;
}

static inline int kstrtou64(const char *s, unsigned int base, u64 *value)
{
	return shim_digits(s + (*s == '+'), base, value);
}

static inline int kstrtos64(const char *s, unsigned int base, s64 *value)
{
	u64 magnitude;
	int err = *s == '-' ? shim_digits(s + 1, base, &magnitude) : kstrtou64(s, base, &magnitude);

	if (!err && magnitude > (u64)INT64_MAX + (*s == '-'))
		return -ERANGE;
	*value = *s == '-' ? -magnitude : magnitude;
	return err;
}

#endif /* SHIM_KSTRTOX_H */
