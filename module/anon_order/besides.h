/* SPDX-License-Identifier: GPL-2.0 */
/* Answers of the point anon_order at sites that are no first touch. */
#ifndef MMPOLICY_ANON_ORDER_BESIDES_H
#define MMPOLICY_ANON_ORDER_BESIDES_H

#include "../compat.h"

unsigned long mmp_anon_order_reuse(struct vm_area_struct *vma);
unsigned long mmp_anon_order_besides(const struct vm_fault *vmf, enum mm_policy_site site);

#endif /* MMPOLICY_ANON_ORDER_BESIDES_H */
