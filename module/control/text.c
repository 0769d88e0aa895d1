// SPDX-License-Identifier: GPL-2.0
/* What a text that is written means: a number, a binding, a name. */
#include <linux/ctype.h>
#include <linux/errno.h>
#include <linux/kstrtox.h>
#include <linux/string.h>

#include "text.h"

/**
 * mmp_parse - read a number
 * @buf: one newline may follow
 * @count: length of what was written
 * @min: smallest value accepted
 * @max: largest value accepted
 * @value: where to
 *
 * Return: 0, -EINVAL or -ERANGE.
 */
int mmp_parse(const char *buf, size_t count, u64 min, u64 max, u64 *value)
{
	s64 negative;
	int err;

	if (count > MMP_LONGEST)
		return -EINVAL;
	if (*buf == '-')
		return kstrtos64(buf, 10, &negative) ?: -ERANGE;
	err = kstrtou64(buf, 10, value);
	if (err)
		return err;
	return *value < min || *value > max ? -ERANGE : 0;
}

/**
 * mmp_parse_binding - read what is to be bound, or not any more
 * @buf: a number, perhaps with a minus; one newline may follow
 * @count: length of what was written
 * @off: is it a minus?
 * @number: where to
 *
 * Return: 0, -EINVAL or -ERANGE.
 */
int mmp_parse_binding(const char *buf, size_t count, bool *off, u64 *number)
{
	*off = *buf == '-';
	if (*off && !isdigit(buf[1]))
		return -EINVAL;
	return mmp_parse(buf + *off, count, 0, U64_MAX, number);
}

/**
 * mmp_parse_name - read the name of a new profile
 * @buf: one newline may follow
 * @name: where to
 * @size: of that
 *
 * Return: 0 or -EINVAL.
 */
int mmp_parse_name(const char *buf, char *name, size_t size)
{
	/* No arm is "none", and the others are files beside the profiles. */
	static const char *const taken[] = {
		"none", "create", "delete", "experiment", "measure"
	};
	size_t len = strspn(buf, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	if (!len || len >= size || *buf == '_' || *buf == '-')
		return -EINVAL;
	memcpy(name, buf, len);
	name[len] = '\0';
	if (!sysfs_streq(buf, name) || match_string(taken, ARRAY_SIZE(taken), name) >= 0)
		return -EINVAL;
	return 0;
}
