// SPDX-License-Identifier: GPL-2.0
/*
 * The point madv_free: madvise_dontneed_free_valid_vma() says whether a range may be
 * freed, before that is done lazily. What is to be freed at once is freed here, and
 * nothing is left of the range.
 */
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/userfaultfd_k.h>

#include "direct.h"

static const char in_arguments[] =
	"bool(vm_area_struct*, long unsigned int, long unsigned int*, int)";
static const char in_one_structure[] = "bool(madvise_behavior*)";

static DEFINE_PER_CPU(long, inside);

struct mmp_call mmp_call_madv_free = {
	.entry = mmp_entry_madv_free,
	.function = { "madvise_dontneed_free_valid_vma" },
	.inside = &inside,
};

/*
 * What MADV_DONTNEED calls, with in_one_structure[] and in_arguments[]. With the first one,
 * the kernel gathers what a call of madvise() frees, and flushes once for all of it.
 */
#define TWO_LONGS	"long unsigned int, long unsigned int"
static const struct {
	const char *name;
	const char *prototype;
} zaps[] = {
	{ "zap_vma_range_batched",
	  "void(mmu_gather*, vm_area_struct*, " TWO_LONGS ", zap_details*)" },
	{ "zap_page_range_single",
	  "void(vm_area_struct*, " TWO_LONGS ", zap_details*)" },
};

DEFINE_STATIC_CALL_NULL(mmp_madv_free_original, mmp_replace_madv_free);
DEFINE_STATIC_CALL_NULL(mmp_madv_free_zap, mmp_zap);
DEFINE_STATIC_CALL_NULL(mmp_madv_free_zap_batched, mmp_zap_batched);

/* Members of that structure, and of the one for the range in it. */
enum { VMA, BEHAVIOR, RANGE, TLB, MEMBERS };

static struct mmp_member members[MEMBERS] = {
	[VMA] = { "vm_area_struct*", "vma" },
	[BEHAVIOR] = { "int", "behavior" },
	[RANGE] = { "madvise_behavior_range", "range" },
	[TLB] = { "mmu_gather*", "tlb" },
};

enum { START, END, ENDS };

static struct mmp_member ends[ENDS] = {
	[START] = { "long unsigned int", "start" },
	[END] = { "long unsigned int", "end" },
};

static DEFINE_STATIC_KEY_FALSE(arguments_in_one);

/* A call of madvise(), as the function gets it; @tlb only where that is in one structure. */
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
	void *range = first + members[RANGE].at;

	if (!static_branch_unlikely(&arguments_in_one))
		return (struct madvise_call){ first, start, end, behavior };
	return (struct madvise_call){
		*(struct vm_area_struct **)(first + members[VMA].at),
		*(unsigned long *)(range + ends[START].at), range + ends[END].at,
		*(int *)(first + members[BEHAVIOR].at),
		*(struct mmu_gather **)(first + members[TLB].at),
	};
}

/*
 * A userfaultfd with UFFD_FEATURE_EVENT_REMOVE gets its event after this, and without the
 * lock. There is no moment for the module to free the range, so it is freed lazily.
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
 * The policy is not asked about a range that the kernel will not free. Nothing sleeps here,
 * so most calls take no more than this.
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

/* With all that the kernel does in madvise_dontneed_free() for MADV_DONTNEED. */
bool mmp_replace_madv_free(void *first, unsigned long start, unsigned long *end,
			   int behavior)
{
	const struct madvise_call call = call_of(first, start, end, behavior);
	bool valid;

	mmp_call_enter(inside);
	valid = static_call(mmp_madv_free_original)(first, start, end, behavior);
	if (valid) {
		zap(&call);
		*call.end = call.start;
	}
	mmp_call_leave(inside);
	return valid;
}

/**
 * mmp_madv_free_find - can the point be had?
 * @reason: why not
 * @size: of that
 *
 * Context: as mmp_call_find().
 * Return: 0 or -EOPNOTSUPP.
 */
int mmp_madv_free_find(char *reason, size_t size)
{
	struct mmp_call *call = &mmp_call_madv_free;
	bool in_one = !mmp_call_check(call->function[0], in_one_structure, reason, size);
	int err;

	call->prototype[0] = in_one ? in_one_structure : in_arguments;
	err = mmp_call_find(call, reason, size) ?:
	      mmp_call_check(zaps[!in_one].name, zaps[!in_one].prototype, reason, size);
	if (!err && in_one)
		err = mmp_members("madvise_behavior", members, MEMBERS, reason, size) ?:
		      mmp_members("madvise_behavior_range", ends, ENDS, reason, size);
	if (err)
		return err;
	static_call_update(mmp_madv_free_original, mmp_call_original(call, 0));
	if (in_one) {
		static_branch_enable(&arguments_in_one);
		static_call_update(mmp_madv_free_zap_batched, mmp_symbol(zaps[0].name));
	} else {
		static_call_update(mmp_madv_free_zap, mmp_symbol(zaps[1].name));
	}
	return 0;
}
