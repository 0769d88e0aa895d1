/* SPDX-License-Identifier: GPL-2.0 */
#include <linux/mm_types.h>

#ifndef SHIM_MM_H
#define SHIM_MM_H

enum { MM_FILEPAGES, MM_ANONPAGES };

unsigned long get_mm_counter(struct mm_struct *mm, int member);

#endif /* SHIM_MM_H */
