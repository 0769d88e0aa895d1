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

static const char told_in_arguments[] =
	"bool(vm_area_struct*, long unsigned int, long unsigned int*, int)";
static const char told_in_one[] = "bool(madvise_behavior*)";

static DEFINE_PER_CPU(long, inside);

struct mmp_call mmp_call_madv_free = {
	.entry = mmp_entry_madv_free,
	.function = { "madvise_dontneed_free_valid_vma" },
	.inside = &inside,
};

/* What MADV_DONTNEED calls, with told_in_one[] and told_in_arguments[]. */
static const struct {
	const char *name;
	const char *prototype;
} zaps[] = {
	{ "zap_vma_range", "void(vm_area_struct*, long unsigned int, long unsigned int)" },
	{ "zap_page_range_single",
	  "void(vm_area_struct*, long unsigned int, long unsigned int, zap_details*)" },
};

DEFINE_STATIC_CALL_NULL(mmp_madv_free_rest, mmp_instead_of_madv_free);
DEFINE_STATIC_CALL_NULL(mmp_madv_free_zap, mmp_zap);

/* Of kernels that tell all in one structure, and in that of the range in another one. */
enum { VMA, BEHAVIOR, RANGE, MEMBERS };

static struct mmp_member members[MEMBERS] = {
	[VMA] = { "vm_area_struct*", "vma" },
	[BEHAVIOR] = { "int", "behavior" },
	[RANGE] = { "madvise_behavior_range", "range" },
};

enum { START, END, ENDS };

static struct mmp_member ends[ENDS] = {
	[START] = { "long unsigned int", "start" },
	[END] = { "long unsigned int", "end" },
};

static DEFINE_STATIC_KEY_FALSE(all_in_one);

/* A call of madvise(), as the function is told of it. */
struct told {
	struct vm_area_struct *vma;
	unsigned long start;
	unsigned long *end;
	int behavior;
};

static struct told told(void *first, unsigned long start, unsigned long *end, int behavior)
{
	void *range = first + members[RANGE].at;

	if (!static_branch_unlikely(&all_in_one))
		return (struct told){ first, start, end, behavior };
	return (struct told){
		*(struct vm_area_struct **)(first + members[VMA].at),
		*(unsigned long *)(range + ends[START].at), range + ends[END].at,
		*(int *)(first + members[BEHAVIOR].at)
	};
}

/*
 * A userfaultfd that wants to be told of it is told after this, and without the lock.
 * So there is no moment for us to free the range, and it is freed lazily.
 */
static bool somebody_is_told(const struct vm_area_struct *vma)
{
#ifdef CONFIG_USERFAULTFD
	const struct userfaultfd_ctx *ctx = vma->vm_userfaultfd_ctx.ctx;

	return ctx && ctx->features & UFFD_FEATURE_EVENT_REMOVE;
#else
	return false;
#endif
}

/*
 * Nobody is asked of what the kernel will not free. Nothing sleeps here, so most calls
 * take no more than this.
 */
bool mmp_wants_madv_free(void *first, unsigned long start, unsigned long *end,
			 int behavior)
{
	const struct told t = told(first, start, end, behavior);

	return t.behavior == MADV_FREE && vma_is_anonymous(t.vma) &&
	       !(t.vma->vm_flags & (VM_PFNMAP | VM_LOCKED)) && !somebody_is_told(t.vma) &&
	       mmp_ask(MM_POLICY_MADV_FREE, false, madv_free_eager, t.vma, t.start, *t.end);
}

/* With all that the kernel does in madvise_dontneed_free() for MADV_DONTNEED. */
bool mmp_instead_of_madv_free(void *first, unsigned long start, unsigned long *end,
			      int behavior)
{
	const struct told t = told(first, start, end, behavior);
	bool valid;

	mmp_call_enter(inside);
	valid = static_call(mmp_madv_free_rest)(first, start, end, behavior);
	if (valid) {
		static_call(mmp_madv_free_zap)(t.vma, t.start, *t.end - t.start, NULL);
		*t.end = t.start;
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
	bool in_one = !mmp_call_check(call->function[0], told_in_one, reason, size);
	int err;

	call->prototype[0] = in_one ? told_in_one : told_in_arguments;
	err = mmp_call_find(call, reason, size) ?:
	      mmp_call_check(zaps[!in_one].name, zaps[!in_one].prototype, reason, size);
	if (!err && in_one)
		err = mmp_members("madvise_behavior", members, MEMBERS, reason, size) ?:
		      mmp_members("madvise_behavior_range", ends, ENDS, reason, size);
	if (err)
		return err;
	if (in_one)
		static_branch_enable(&all_in_one);
	static_call_update(mmp_madv_free_rest, mmp_call_rest(call));
	static_call_update(mmp_madv_free_zap, mmp_symbol(zaps[!in_one].name));
	return 0;
}
