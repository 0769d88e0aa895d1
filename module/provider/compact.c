// SPDX-License-Identifier: GPL-2.0
/*
 * The point compact: the hooked compact_zone() runs for each compaction of a
 * zone, direct or not. Zones whose compaction the kernel defers are not
 * reported.
 */
#include "direct.h"

struct mmp_call mmp_call_compact = {
	.entry = mmp_entry_compact,
	.need = { MMP_NEED_compact },
};

DEFINE_STATIC_CALL_NULL(mmp_compact_original, mmp_replace_compact);

/* Reads a member of struct compact_control, which no header defines. */
#define member(cc, type, which)	(*(type const *)((const void *)(cc) + mmp_offset[MMP_NEED_##which]))

/*
 * Offset in struct compact_control of the member that marks direct compaction.
 * kcompactd, and compaction by the administrator, may take long and are left
 * alone.
 */
int mmp_compact_direct;

/*
 * Returns true if the policy defers compaction. At the last priority the kernel
 * compacts the whole zone, and the policy is not asked.
 */
static bool is_put_off(const struct compact_control *cc)
{
	return !member(cc, bool, whole) &&
	       mmp_ask(MM_POLICY_COMPACT, MM_POLICY_TRY, compact_try,
		       member(cc, struct zone *, zone), member(cc, int, order),
		       member(cc, gfp_t, gfp), MM_POLICY_TRY) == MM_POLICY_DEFER;
}

/*
 * Runs direct compaction: asks the policy before it, and reports the result to
 * the policy afterwards, as the hook in try_to_compact_pages() does.
 */
static enum compact_result compact_directly(struct compact_control *cc,
					    struct capture_control *capture)
{
	enum compact_result result;

	if (is_put_off(cc))
		return COMPACT_DEFERRED;
	result = static_call(mmp_compact_original)(cc, capture);
	mmp_ask(MM_POLICY_COMPACT, (void)0, compact_done,
		member(cc, struct zone *, zone), member(cc, int, order),
		member(cc, gfp_t, gfp), result == COMPACT_SUCCESS,
		member(cc, unsigned long, migrate_scanned),
		member(cc, unsigned long, free_scanned));
	return result;
}

enum compact_result mmp_replace_compact(struct compact_control *cc,
					struct capture_control *capture)
{
	enum compact_result result;

	mmp_call_enter();
	result = compact_directly(cc, capture);
	mmp_call_leave();
	return result;
}

/*
 * Makes the static call of this file call the kernel function that mmp_call_find() has
 * found, and stores the offset of a structure member. Context: after mmp_needs_find()
 * and mmp_call_find().
 */
void mmp_compact_found(void)
{
	mmp_compact_direct = mmp_offset[MMP_NEED_direct];
	static_call_update(mmp_compact_original, mmp_call_original(&mmp_call_compact, 0));
}
