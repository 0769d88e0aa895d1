/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_MMZONE_H
#define SHIM_MMZONE_H

#include <linux/mm_types.h>

#define MAX_NR_ZONES	4
#define NR_PAGE_ORDERS	11
#define NR_FREE_PAGES	0

struct zone {
	int nid;
	int idx;
	unsigned long managed;
	unsigned long free;
	unsigned int compact_considered;
	unsigned int compact_defer_shift;
};

static inline int zone_to_nid(const struct zone *zone)
{
	return zone->nid;
}

static inline int zone_idx(const struct zone *zone)
{
	return zone->idx;
}

static inline unsigned long zone_managed_pages(const struct zone *zone)
{
	return zone->managed;
}

static inline unsigned long zone_page_state(const struct zone *zone, int item)
{
	return zone->free;
}

#endif /* SHIM_MMZONE_H */
