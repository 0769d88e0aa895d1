/* SPDX-License-Identifier: GPL-2.0 */
/* Recognises builds of the kernel that the module was tested on. */
#ifndef MMPOLICY_FINGERPRINT_H
#define MMPOLICY_FINGERPRINT_H

#include <linux/types.h>

/**
 * mmp_fingerprint_check - test whether the module was tested on this kernel
 * build
 * @reason: buffer for the reason of an error
 * @size: size of @reason
 *
 * Context: once, after mmp_needs_find() and while mmp_prototype() can be
 * called.
 * Return: 0 or -EOPNOTSUPP.
 */
int mmp_fingerprint_check(char *reason, size_t size);

#endif /* MMPOLICY_FINGERPRINT_H */
