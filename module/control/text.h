/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Parses text that is written to sysfs files. Plain C, which the unit tests
 * also compile in user space.
 */
#ifndef MMPOLICY_TEXT_H
#define MMPOLICY_TEXT_H

#include <linux/mm.h>

#define MMP_LONGEST	64	/* longest accepted text in bytes */

int mmp_parse(const char *buf, size_t count, u64 min, u64 max, u64 *value);
int mmp_parse_binding(const char *buf, size_t count, bool *off, u64 *number);
int mmp_parse_name(const char *buf, char *name, size_t size);

#endif /* MMPOLICY_TEXT_H */
