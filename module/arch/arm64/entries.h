/* SPDX-License-Identifier: GPL-2.0 */
/* Functions that entry.S calls first in each fault. */
#ifndef MMPOLICY_ARCH_ARM64_ENTRIES_H
#define MMPOLICY_ARCH_ARM64_ENTRIES_H

#include <linux/mm.h>

notrace unsigned long mmp_fault_begin(struct vm_fault *vmf);
notrace unsigned long mmp_orders_begin(struct vm_area_struct *vma, unsigned long vm_flags,
				       unsigned long why, unsigned long asked);

#endif /* MMPOLICY_ARCH_ARM64_ENTRIES_H */
