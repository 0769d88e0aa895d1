/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Chooses the order of the folio that adaptive requests in a copy-on-write
 * fault.
 */
#ifndef MMPOLICY_ANON_ORDER_COPY_H
#define MMPOLICY_ANON_ORDER_COPY_H

#include "anon_order.h"

struct mmp_decision anon_order_copy(const struct vm_fault *vmf, const u32 *knob);

#endif /* MMPOLICY_ANON_ORDER_COPY_H */
