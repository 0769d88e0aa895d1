/* SPDX-License-Identifier: GPL-2.0 */
/* Parses texts that are written to files of the module, as docs/sysfs-abi.txt specifies. */
#ifndef MEANING_H
#define MEANING_H

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "basics.h"

#define LONGEST	64	/* bytes of the longest text that is accepted */

/* A text of @len bytes, which may include zero bytes. A zero byte follows it. */
struct text {
	char *s;
	size_t len;
};

/* Returns true if the text equals @word up to its first zero byte, ignoring one final newline. */
static inline bool means(const struct text *t, const char *word)
{
	size_t n = strlen(word);

	return !strncmp(t->s, word, n) && (!t->s[n] || (t->s[n] == '\n' && !t->s[n + 1]));
}

static inline int to_number(const char *s, size_t count, uint64_t min, uint64_t max, uint64_t *value)
{
	bool negative = *s == '-';
	char *end;

	s += negative || *s == '+';
	if (count > LONGEST || !isdigit(*s))
		return EINVAL;
	errno = 0;
	*value = strtoull(s, &end, 10);
	if (errno)
		return ERANGE;
	if (*end && strcmp(end, "\n"))
		return EINVAL;
	return negative || *value < min || *value > max ? ERANGE : 0;
}

static inline int to_binding(const struct text *t, bool *off, uint64_t *number)
{
	*off = *t->s == '-';
	if (*off && !isdigit(t->s[1]))
		return EINVAL;
	return to_number(t->s + *off, t->len, 0, ULONG_MAX, number);
}

static inline bool to_name(const struct text *t, char *name)
{
	static const char *const taken[] = { "none", "create", "delete", "experiment", "measure" };
	size_t n = strspn(t->s, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	if (!n || n > 31 || *t->s == '_' || *t->s == '-')
		return false;
	snprintf(name, 32, "%.*s", (int)n, t->s);
	for (size_t i = 0; i < sizeof(taken) / sizeof(*taken); i++)
		if (!strcmp(name, taken[i]))
			return false;
	return means(t, name);
}

#endif /* MEANING_H */
