// SPDX-License-Identifier: GPL-2.0
/*
 * The point compact: compact_zone() is called for each zone that is to be compacted,
 * whoever it is for. Of zones that the kernel has put off nobody is told.
 */
#include "direct.h"

static DEFINE_PER_CPU(long, inside);

struct mmp_call mmp_call_compact = {
	.entry = mmp_entry_compact,
	.function = { "compact_zone" },
	.prototype = { "compact_result(compact_control*, capture_control*)" },
	.inside = &inside,
};

DEFINE_STATIC_CALL_NULL(mmp_compact_original, mmp_replace_compact);

/* Offsets of members of struct compact_control, from the kernel's BTF. */
enum { ZONE, ORDER, GFP, DIRECT, WHOLE, MIGRATE_SCANNED, FREE_SCANNED, MEMBERS };

static struct mmp_member members[MEMBERS] = {
	[ZONE] = { "zone*", "zone" },
	[ORDER] = { "int", "order" },
	[GFP] = { "gfp_t const", "gfp_mask" },
	[DIRECT] = { "bool", "direct_compaction" },
	[WHOLE] = { "bool", "whole_zone" },
	[MIGRATE_SCANNED] = { "long unsigned int", "total_migrate_scanned" },
	[FREE_SCANNED] = { "long unsigned int", "total_free_scanned" },
};

#define member(cc, type, which)	(*(type const *)((const void *)(cc) + members[which].at))

/* kcompactd and the administrator, who may wait for long, are left alone. */
int mmp_compact_direct;

/* The whole zone is compacted at the last priority, about which nobody is asked. */
static bool is_put_off(const struct compact_control *cc)
{
	return !member(cc, bool, WHOLE) &&
	       mmp_ask(MM_POLICY_COMPACT, MM_POLICY_TRY, compact_try,
		       member(cc, struct zone *, ZONE), member(cc, int, ORDER),
		       member(cc, gfp_t, GFP), MM_POLICY_TRY) == MM_POLICY_DEFER;
}

/* The same question that the hook asks in try_to_compact_pages(). */
static enum compact_result compact_directly(struct compact_control *cc,
					    struct capture_control *capture)
{
	enum compact_result result;

	if (is_put_off(cc))
		return COMPACT_DEFERRED;
	result = static_call(mmp_compact_original)(cc, capture);
	mmp_ask(MM_POLICY_COMPACT, (void)0, compact_done,
		member(cc, struct zone *, ZONE), member(cc, int, ORDER),
		member(cc, gfp_t, GFP), result == COMPACT_SUCCESS,
		member(cc, unsigned long, MIGRATE_SCANNED),
		member(cc, unsigned long, FREE_SCANNED));
	return result;
}

enum compact_result mmp_replace_compact(struct compact_control *cc,
					struct capture_control *capture)
{
	enum compact_result result;

	mmp_call_enter(inside);
	result = compact_directly(cc, capture);
	mmp_call_leave(inside);
	return result;
}

/**
 * mmp_compact_find - can the point be had?
 * @reason: why not
 * @size: of that
 *
 * Context: as mmp_call_find().
 * Return: 0 or -EOPNOTSUPP.
 */
int mmp_compact_find(char *reason, size_t size)
{
	int err = mmp_call_find(&mmp_call_compact, reason, size) ?:
		  mmp_members("compact_control", members, MEMBERS, reason, size);

	if (err)
		return err;
	mmp_compact_direct = members[DIRECT].at;
	static_call_update(mmp_compact_original, mmp_call_original(&mmp_call_compact, 0));
	return 0;
}
