// SPDX-License-Identifier: GPL-2.0
/*
 * The point anon_order: faults as a whole. do_anonymous_page() calls its entry first, where
 * the policy is asked. If it wants a large folio, the function runs as a part of ours, which
 * then looks at the mapped folio. The kernel asks for sizes in between, see orders.c.
 *
 * do_huge_pmd_anonymous_page() is for PMD size, and do_swap_page() for swap-in.
 */
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched/task_stack.h>
#include <linux/userfaultfd_k.h>

#include "../anon_order/defer.h"
#include "../anon_order/table.h"
#include "../sense/fault_time.h"
#include "../sense/observe.h"
#include "../sense/whose.h"
#include "direct.h"

struct mmp_call mmp_call_fault = {
	.entry = mmp_entry_fault,
	.need = { MMP_NEED_fault },
};

DEFINE_STATIC_CALL_NULL(mmp_fault_original, mmp_replace_huge);
DEFINE_STATIC_CALL_NULL(mmp_huge_original, mmp_replace_huge);

/*
 * What do_anonymous_page() does before it asks for sizes, and where it may sleep: a page
 * table, and what keeps track of anonymous pages.
 */
DEFINE_STATIC_CALL_NULL(mmp_pte_alloc, mmp_alloc_table);
DEFINE_STATIC_CALL_NULL(mmp_anon_prepare, mmp_replace_huge);

static bool anybody_is_asked(void)
{
	return rcu_access_pointer(mmp_asked[MM_POLICY_ANON_ORDER]);
}

/*
 * Does any policy or shadow answer for this task? If not, this CPU keeps that
 * until bindings, arms or settings change, and its next faults take the short way.
 */
static bool decides(const struct mm_struct *mm)
{
	/* Pairs with mmp_whose_outdate(). */
	unsigned long now = smp_load_acquire(&mmp_epoch);
	struct mmp_profile *profile = mmp_profile_of(mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);

	if (settings->active[MM_POLICY_ANON_ORDER] || settings->shadow[MM_POLICY_ANON_ORDER])
		return true;
	if (static_branch_unlikely(&mmp_timing))
		return true;
	if (mmp_keep(&mmp_undecided, mm, now, profile))
		__this_cpu_write(mmp_undecided_count, (__force unsigned long)
				 (mmp_counters(profile, &mmp_point_anon_order) + MMP_STOCK));
	return false;
}

/**
 * mmp_policy_decides - is a policy asked about the faults of current?
 * @mm: that current works on
 */
bool mmp_policy_decides(const struct mm_struct *mm)
{
	guard(mmp_ask)();
	return anybody_is_asked() && decides(mm);
}

/*
 * The policy has answered this fault with a page, and the next ones in advance: the entry
 * answers these, until bindings, arms or settings change, or a listener asks for each fault.
 * @epoch is from before the policy was asked.
 *
 * Context: preemption is off.
 */
static noinline void keep_ahead(const struct mm_struct *mm, unsigned long epoch)
{
	struct mmp_profile *profile = mmp_profile_of(mm);
	enum mmp_reason reason;
	u64 __percpu *counter;
	u32 faults;

	if (static_branch_unlikely(&mmp_watched) || static_branch_unlikely(&mmp_timing))
		return;
	faults = mmp_ahead_take(&reason);
	if (!mmp_keep(&mmp_in_advance.of, mm, epoch, profile))
		return;
	counter = anon_order_counters(profile);
	__this_cpu_write(mmp_in_advance.left, faults);
	__this_cpu_write(mmp_in_advance.requested, (__force unsigned long)(counter + REQUESTED));
	__this_cpu_write(mmp_in_advance.reason, (__force unsigned long)(counter + REASON + reason));
}

/* Notes the question of a fault, and the answer; preemption is off. */
static void question_note(const struct vm_fault *vmf, unsigned long answer)
{
	__this_cpu_write(mmp_question.vmf, vmf);
	__this_cpu_write(mmp_question.key, READ_ONCE(mmp_epoch) ^ vmf->address);
	__this_cpu_write(mmp_question.answer, answer);
	__this_cpu_write(mmp_question.page, 0);
}

/*
 * The policy has answered the question of the entry with a page, or with stock. Keeps that for
 * the moment when the kernel asks, and for the next faults. An answer of large folios is kept
 * later, by fault_prepare().
 *
 * Context: preemption is off.
 */
static __always_inline unsigned long keep_small(const struct vm_fault *vmf, unsigned long answer)
{
	const unsigned long epoch = __this_cpu_read(mmp_question.key) ^ vmf->address;
	const struct mm_struct *mm = vmf->vma->vm_mm;

	__this_cpu_write(mmp_question.answer, answer);
	__this_cpu_write(mmp_question.page, answer ? 0 : epoch ^ (unsigned long)vmf->vma);
	if (unlikely(answer)) {
		if (anybody_is_asked())
			decides(mm);
	} else if (__this_cpu_read(mmp_ahead)) {
		keep_ahead(mm, epoch);
	}
	return answer;
}

/*
 * A write to a page that is not there: the policy is asked, and its answer is kept for the
 * moment when the kernel asks. It is returned if there may be something to see afterwards:
 * never where a userfaultfd may make the fault wait for as long as its owner likes.
 *
 * Context: from mmp_entry_fault, which has turned preemption off; on again afterwards.
 */
notrace __noendbr unsigned long mmp_wants_fault(struct vm_fault *vmf)
{
	unsigned long answer = MM_POLICY_STOCK;

	rcu_lock_acquire(&rcu_lock_map);
	__this_cpu_write(mmp_ahead, 0);
	if (anybody_is_asked()) {
		if (unlikely(!(vmf->flags & FAULT_FLAG_ORIG_PTE_VALID)) &&	/* no table */
		    !mmp_pmd_size_asked(vmf->vma))
			mmp_anon_orders(vmf, MM_POLICY_PMD);	/* policies count on that */
		answer = mmp_anon_orders(vmf, MM_POLICY_PTE);
	}
	if (answer <= MM_POLICY_STOCK)
		answer = keep_small(vmf, answer);
	mmp_ask_end();
	if (static_branch_unlikely(&mmp_timing) && !userfaultfd_armed(vmf->vma))
		return answer | MMP_TOLD;
	return answer > MM_POLICY_STOCK ? answer : 0;
}

/* do_swap_page() has begun; the policy is asked only if the kernel asks for sizes there. */
notrace __noendbr struct vm_fault *mmp_note_swapin(struct vm_fault *vmf)
{
	guard(preempt)();
	question_note(vmf, MMP_SWAPIN_ASKS);
	return vmf;
}

/* Those of the sizes @asked that the policy allows for a fault from swap. */
unsigned long mmp_ask_swapin(struct vm_area_struct *vma, unsigned long vm_flags,
			     unsigned long asked)
{
	unsigned long answer = MM_POLICY_STOCK;

	scoped_guard(mmp_ask) {
		const struct mmp_question *question = this_cpu_ptr(&mmp_question);
		const struct vm_fault *vmf = question->vmf;

		if (anybody_is_asked() && vmf && object_is_on_stack(vmf) && vmf->vma == vma &&
		    question->key == (READ_ONCE(mmp_epoch) ^ vmf->address) &&
		    question->answer == MMP_SWAPIN_ASKS && decides(vma->vm_mm))
			answer = mmp_anon_orders(vmf, MM_POLICY_SWAPIN);
	}
	return answer & MM_POLICY_STOCK ? mmp_sizes_admin(vm_flags, asked) : asked & answer;
}

/* Anonymous pages of a process as a CPU knows them: its own part of the count, and the sum. */
struct counted {
	const s32 *part;
	s32 here;
	s64 all;
};

/* Context: preemption is off. */
static __always_inline struct counted counted(const struct mm_struct *mm)
{
	const struct percpu_counter *pages = &mm->rss_stat[MM_ANONPAGES];
	const s32 *part = this_cpu_ptr(pages->counters);

	return (struct counted){ .part = part, .here = *part, .all = READ_ONCE(pages->count) };
}

/*
 * Has this fault mapped something? If another thread was faster, the kernel has released the
 * folio of this fault, and the count has not changed. After a move to another CPU the count does
 * not tell, and the answer is yes.
 *
 * Context: preemption is off.
 */
static __always_inline bool has_grown(struct counted before, const struct mm_struct *mm)
{
	struct counted now = counted(mm);

	return now.part != before.part || now.here != before.here || now.all != before.all;
}

/* The order of the folio that @entry maps a page of; -1 if no fault maps one like that. */
static int order_mapped(pte_t entry, unsigned long address)
{
	struct folio *folio;
	int order;

	if (!pte_present(entry))
		return -1;
	folio = page_folio(pte_page(entry));
	order = folio_order(folio);
	if (!folio_test_anon(folio) || pte_pfn(entry) - folio_pfn(folio) !=
	    (address - ALIGN_DOWN(address, PAGE_SIZE << order)) >> PAGE_SHIFT)
		return -1;
	return order;
}

/* Makes the outermost entries old, but not that of the fault, as the hook policy_mapped(). */
static void tell_mapped(const struct mm_policy_ops *ops, struct vm_fault *vmf, pte_t *pte)
{
	int order = order_mapped(ptep_get(pte), vmf->address), first, last;

	if (order < 0 || (!order && !static_branch_unlikely(&mmp_timing)))
		return;
	if (!ops->anon_mapped(vmf, order))
		return;
	first = -(int)(vmf->address >> PAGE_SHIFT & (BIT(order) - 1));
	last = first + BIT(order) - 1;
	if (first)
		mmp_make_old(pte + first);
	if (last)
		mmp_make_old(pte + last);
}

/*
 * Tells the policy, if this fault has mapped something. The table may be gone by now, so the
 * kernel's own way to lock one: look at it again.
 */
static void fault_mapped(struct vm_fault *vmf, struct counted before)
{
	const struct mm_policy_ops *ops;
	spinlock_t *lock;	/* of the page table */
	pmd_t pmd;

	guard(mmp_ask)();
	if (!has_grown(before, vmf->vma->vm_mm))
		return;
	ops = rcu_dereference(mmp_asked[MM_POLICY_ANON_ORDER]);
	pmd = pmdp_get_lockless(vmf->pmd);
	if (!ops || !mmp_is_table(pmd))
		return;
	lock = pte_lockptr(vmf->vma->vm_mm, &pmd);
	spin_lock(lock);
	if (pmd_same(pmd, pmdp_get_lockless(vmf->pmd)))
		tell_mapped(ops, vmf, (pte_t *)mmp_table(pmd) + pte_index(vmf->address));
	spin_unlock(lock);
}

/*
 * Where the kernel would sleep before it asks for sizes, other tasks could take the place of
 * the answer. So this comes first, and then the answer is noted again. Whatever fails here
 * fails again in the kernel, which knows what to do.
 */
static struct counted fault_prepare(struct vm_fault *vmf, unsigned long answer)
{
	struct vm_area_struct *vma = vmf->vma;

	mmp_call_enter();
	if (likely(!(vma->vm_flags & VM_SHARED))) {
		if (pmd_none(pmdp_get_lockless(vmf->pmd)))
			static_call(mmp_pte_alloc)(vma->vm_mm, vmf->pmd);
		if (!vma->anon_vma)
			static_call(mmp_anon_prepare)(vmf);
	}
	guard(preempt)();
	question_note(vmf, answer & ~MMP_TOLD);
	return counted(vma->vm_mm);
}

vm_fault_t mmp_replace_fault(struct vm_fault *vmf, unsigned long answer)
{
	struct counted before = fault_prepare(vmf, answer);
	vm_fault_t ret = static_call(mmp_fault_original)(vmf);

	if (!ret)
		fault_mapped(vmf, before);
	mmp_call_leave();	/* fault_prepare() has entered */
	return ret;
}

/* A fault that may wait for a userfaultfd has nothing of ours on its stack. */
bool mmp_wants_huge(struct vm_fault *vmf)
{
	return !userfaultfd_armed(vmf->vma) && mmp_policy_decides(vmf->vma->vm_mm);
}

/* May the fault get a PMD? If not, the kernel goes on as where that size is not enabled. */
static bool huge_is_wanted(const struct vm_fault *vmf)
{
	unsigned long answer = mmp_ask(MM_POLICY_ANON_ORDER, MM_POLICY_STOCK, anon_orders,
				       vmf, MM_POLICY_PMD);

	if (answer & MM_POLICY_STOCK)
		answer = mmp_sizes_admin(vmf->vma->vm_flags, BIT(PMD_ORDER));
	return answer & BIT(PMD_ORDER);
}

/* counted() and has_grown(), where it may be preempted. */
static struct counted counted_now(const struct mm_struct *mm)
{
	guard(preempt)();
	return counted(mm);
}

static bool has_grown_now(struct counted before, const struct mm_struct *mm)
{
	guard(preempt)();
	return has_grown(before, mm);
}

static vm_fault_t huge_if_wanted(struct vm_fault *vmf)
{
	struct counted before = counted_now(vmf->vma->vm_mm);
	vm_fault_t ret;

	if (!huge_is_wanted(vmf)) {
		mmp_collapse_later(vmf->vma);
		return VM_FAULT_FALLBACK;
	}
	ret = static_call(mmp_huge_original)(vmf);
	if (!ret && has_grown_now(before, vmf->vma->vm_mm))
		mmp_ask(MM_POLICY_ANON_ORDER, false, anon_mapped, vmf, PMD_ORDER);
	return ret;
}

vm_fault_t mmp_replace_huge(struct vm_fault *vmf)
{
	vm_fault_t ret;

	mmp_call_enter();
	ret = huge_if_wanted(vmf);
	mmp_call_leave();
	return ret;
}

/* Context: after mmp_needs_find() and mmp_call_find(). */
void mmp_fault_found(void)
{
	static_call_update(mmp_pte_alloc, mmp_found(MMP_NEED_pte_alloc));
	static_call_update(mmp_anon_prepare, mmp_found(MMP_NEED_anon_prepare));
	static_call_update(mmp_fault_original, mmp_call_original(&mmp_call_fault, 0));
	static_call_update(mmp_huge_original, mmp_call_original(&mmp_call_rare, 0));
}
