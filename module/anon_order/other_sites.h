/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Answers of the point anon_order to questions other than the order of a first
 * touch.
 */
#ifndef MMPOLICY_ANON_ORDER_OTHER_SITES_H
#define MMPOLICY_ANON_ORDER_OTHER_SITES_H

#include "../compat.h"

unsigned long mmp_anon_order_reuse(struct vm_area_struct *vma);
unsigned long mmp_anon_order_other_site(const struct vm_fault *vmf, enum mm_policy_site site);

#endif /* MMPOLICY_ANON_ORDER_OTHER_SITES_H */
