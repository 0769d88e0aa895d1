/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_SYSFS_H
#define SHIM_SYSFS_H

struct attribute {
	const char *name;
	unsigned short mode;
};

#endif /* SHIM_SYSFS_H */
