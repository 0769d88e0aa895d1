/* SPDX-License-Identifier: GPL-2.0 */
/* The instruction of a function that ftrace patches, by the architecture. */
#ifndef MMPOLICY_ARCH_SITE_H
#define MMPOLICY_ARCH_SITE_H

#include "x86/site.h"

#endif /* MMPOLICY_ARCH_SITE_H */
