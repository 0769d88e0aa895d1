/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_GFP_H
#define SHIM_GFP_H

#include <linux/mm_types.h>

#define __GFP_MOVABLE		0x8u
#define __GFP_ONLY_COMPACT	0x200u
#define __GFP_DIRECT_RECLAIM	0x400u
#define __GFP_KSWAPD_RECLAIM	0x800u
#define __GFP_RECLAIM		(__GFP_DIRECT_RECLAIM | __GFP_KSWAPD_RECLAIM)
#define __GFP_NORETRY		0x10000u
#define __GFP_THISNODE		0x200000u

#endif /* SHIM_GFP_H */
