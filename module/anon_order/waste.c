// SPDX-License-Identifier: GPL-2.0
#include "waste.h"

DEFINE_PER_CPU(struct mmp_credit, mmp_credit);
