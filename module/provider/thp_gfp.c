// SPDX-License-Identifier: GPL-2.0
/*
 * The point thp_gfp: vma_thp_gfp_mask() says with which flags a large folio is
 * allocated. What came of it is not told.
 */
#include <linux/gfp.h>
#include <linux/mm.h>

#include "direct.h"

struct mmp_call mmp_call_thp_gfp = {
	.entry = mmp_entry_thp_gfp,
	.function = { "vma_thp_gfp_mask" },
	.prototype = { "gfp_t(vm_area_struct*)" },
};

DEFINE_STATIC_CALL_NULL(mmp_thp_gfp_rest, mmp_instead_of_thp_gfp);

bool mmp_wants_thp_gfp(struct vm_area_struct *vma)
{
	return vma && vma_is_anonymous(vma);
}

/* The same as where the kernel has hooks. */
gfp_t mmp_instead_of_thp_gfp(struct vm_area_struct *vma)
{
	gfp_t gfp = static_call(mmp_thp_gfp_rest)(vma);

	return gfp ^ (MM_POLICY_GFP_MASK &
		      (gfp ^ mmp_ask(MM_POLICY_THP_GFP, gfp, thp_gfp, vma, gfp)));
}

/**
 * mmp_thp_gfp_find - can the point be had?
 * @reason: why not
 * @size: of that
 *
 * Context: as mmp_call_find().
 * Return: 0 or -EOPNOTSUPP.
 */
int mmp_thp_gfp_find(char *reason, size_t size)
{
	int err = mmp_call_find(&mmp_call_thp_gfp, reason, size);

	if (!err)
		static_call_update(mmp_thp_gfp_rest, mmp_call_rest(&mmp_call_thp_gfp));
	return err;
}
