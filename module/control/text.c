// SPDX-License-Identifier: GPL-2.0
/*
 * Parses text that is written to sysfs files: a number, a binding, the name of
 * a profile.
 */
#include <linux/ctype.h>
#include <linux/errno.h>
#include <linux/kstrtox.h>
#include <linux/string.h>

#include "text.h"

/**
 * mmp_parse - parse a number
 * @buf: one newline may follow
 * @count: length of @buf
 * @min: smallest value accepted
 * @max: largest value accepted
 * @value: receives the number
 *
 * Return: 0; -EINVAL if @buf is not a number; -ERANGE if it is out of bounds.
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
 * mmp_parse_binding - parse a number to bind, or a number with a minus sign to
 * unbind
 * @buf: a number, perhaps with a minus sign; one newline may follow
 * @count: length of @buf
 * @off: set to true if there is a minus sign
 * @number: set to the number, without the sign
 *
 * Return: 0; -EINVAL if @buf is not a number; -ERANGE if it is too large.
 */
int mmp_parse_binding(const char *buf, size_t count, bool *off, u64 *number)
{
	*off = *buf == '-';
	if (*off && !isdigit(buf[1]))
		return -EINVAL;
	return mmp_parse(buf + *off, count, 0, U64_MAX, number);
}

/**
 * mmp_parse_name - parse the name of a new profile
 * @buf: one newline may follow
 * @name: receives the name
 * @size: size of @name in bytes
 *
 * Return: 0; -EINVAL if the name is too long, reserved, or has other characters
 * than a-z, 0-9, _ and -.
 */
int mmp_parse_name(const char *buf, char *name, size_t size)
{
	/*
	 * Names that no profile may have: "none" means that an arm of the
	 * experiment has no profile, and the others are files in the directory
	 * of profiles.
	 */
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
