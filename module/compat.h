/* SPDX-License-Identifier: GPL-2.0 */
/* The one place for differences between kernels, named by what they are. */
#ifndef MMPOLICY_COMPAT_H
#define MMPOLICY_COMPAT_H

#ifndef CONFIG_MM_POLICY
#error "This kernel lacks CONFIG_MM_POLICY: apply kernel-hooks/ and enable it"
#endif

#endif /* MMPOLICY_COMPAT_H */
