/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Finds and tests the instruction that ftrace patches in a kernel function;
 * each architecture has its own version.
 */
#ifndef MMPOLICY_ARCH_SITE_H
#define MMPOLICY_ARCH_SITE_H

#ifdef CONFIG_X86_64
#include "x86/site.h"
#else
#include "arm64/site.h"
#endif

#endif /* MMPOLICY_ARCH_SITE_H */
