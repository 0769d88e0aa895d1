// SPDX-License-Identifier: GPL-2.0
/*
 * The point madv_free: the hooked madvise_dontneed_free_valid_vma() checks a
 * range before the kernel frees it lazily. If the policy wants a range freed at
 * once, the module frees it here, and passes an empty range to the kernel.
 */
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/userfaultfd_k.h>

#include "direct.h"

struct mmp_call mmp_call_madv_free = {
	.entry = mmp_entry_madv_free,
	.need = { MMP_NEED_madv_free },
};

DEFINE_STATIC_CALL_NULL(mmp_madv_free_original, mmp_replace_madv_free);

/*
 * Kernel functions that free the pages of a range for MADV_DONTNEED. The second one is for kernels
 * that pass all arguments of madvise() in one structure; these kernels gather all pages that the
 * call frees, and flush the TLB once.
 */
DEFINE_STATIC_CALL_NULL(mmp_madv_free_zap, mmp_zap);
DEFINE_STATIC_CALL_NULL(mmp_madv_free_zap_batched, mmp_zap_batched);

static DEFINE_STATIC_KEY_FALSE(arguments_in_one);

/*
 * Arguments of the hooked function; @tlb is set only on kernels that pass them
 * in one structure.
 */
struct madvise_call {
	struct vm_area_struct *vma;
	unsigned long start;
	unsigned long *end;
	int behavior;
	struct mmu_gather *tlb;
};

static struct madvise_call call_of(void *first, unsigned long start, unsigned long *end,
				   int behavior)
{
	void *range = first + mmp_offset[MMP_NEED_madvise_range];

	if (!static_branch_unlikely(&arguments_in_one))
		return (struct madvise_call){ first, start, end, behavior };
	return (struct madvise_call){
		*(struct vm_area_struct **)(first + mmp_offset[MMP_NEED_madvise_vma]),
		*(unsigned long *)(range + mmp_offset[MMP_NEED_range_start]),
		range + mmp_offset[MMP_NEED_range_end],
		*(int *)(first + mmp_offset[MMP_NEED_madvise_behavior]),
		*(struct mmu_gather **)(first + mmp_offset[MMP_NEED_madvise_tlb]),
	};
}

/*
 * Returns true if a userfaultfd with UFFD_FEATURE_EVENT_REMOVE watches the VMA.
 * The kernel sends that event later, with mmap_lock dropped. The module cannot
 * free the range after the event, so the kernel frees it lazily.
 */
static bool uffd_gets_event(const struct vm_area_struct *vma)
{
#ifdef CONFIG_USERFAULTFD
	const struct userfaultfd_ctx *ctx = vma->vm_userfaultfd_ctx.ctx;

	return ctx && ctx->features & UFFD_FEATURE_EVENT_REMOVE;
#else
	return false;
#endif
}

/*
 * Returns true if the policy wants the range freed at once. Does not ask the
 * policy about a range that the kernel will not free. This function never
 * sleeps, and for most calls no other code of the module runs.
 */
bool mmp_wants_madv_free(void *first, unsigned long start, unsigned long *end,
			 int behavior)
{
	const struct madvise_call call = call_of(first, start, end, behavior);

	return call.behavior == MADV_FREE && vma_is_anonymous(call.vma) &&
	       !(call.vma->vm_flags & (VM_PFNMAP | VM_LOCKED)) && !uffd_gets_event(call.vma) &&
	       mmp_ask(MM_POLICY_MADV_FREE, false, madv_free_eager, call.vma, call.start,
		       *call.end);
}

static void zap(const struct madvise_call *call)
{
	unsigned long size = *call->end - call->start;

	if (static_branch_unlikely(&arguments_in_one))
		static_call(mmp_madv_free_zap_batched)(call->tlb, call->vma, call->start, size,
						       NULL);
	else
		static_call(mmp_madv_free_zap)(call->vma, call->start, size, NULL);
}

/*
 * Runs in place of the hooked kernel function: frees the range at once, with the checks that
 * madvise_dontneed_free() makes for MADV_DONTNEED, and leaves an empty range to the kernel.
 */
bool mmp_replace_madv_free(void *first, unsigned long start, unsigned long *end,
			   int behavior)
{
	const struct madvise_call call = call_of(first, start, end, behavior);
	bool valid;

	mmp_call_enter();
	valid = static_call(mmp_madv_free_original)(first, start, end, behavior);
	if (valid) {
		zap(&call);
		*call.end = call.start;
	}
	mmp_call_leave();
	return valid;
}

/*
 * Makes the static calls of this file call the kernel functions that mmp_needs_find()
 * and mmp_call_find() have found, with the arguments that they have in this kernel.
 * Context: after these two.
 */
void mmp_madv_free_found(void)
{
	static_call_update(mmp_madv_free_original, mmp_call_original(&mmp_call_madv_free, 0));
	if (mmp_way(MMP_WAY_MADVISE_IN_ONE)) {
		static_branch_enable(&arguments_in_one);
		static_call_update(mmp_madv_free_zap_batched, mmp_found(MMP_NEED_zap_batched));
	} else {
		static_call_update(mmp_madv_free_zap, mmp_found(MMP_NEED_zap));
	}
}
