/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_RANDOM_H
#define SHIM_RANDOM_H

unsigned int pick(unsigned int n);	/* defined in tests/unit/walks.c */

#define get_random_u32_below(ceil)	pick(ceil)

#endif /* SHIM_RANDOM_H */
