// SPDX-License-Identifier: GPL-2.0
#include "ahead.h"

DEFINE_PER_CPU(u32, mmp_ahead);
