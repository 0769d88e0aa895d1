// SPDX-License-Identifier: GPL-2.0
/*
 * The point anon_order for a whole fault. The hooked do_anonymous_page() calls
 * its entry first, where the policy is asked. If the policy requests a large
 * folio, mmp_replace_fault() runs in place of the function, calls it, and then
 * examines the mapped folio. In between, the kernel asks for the allowed sizes,
 * see orders.c.
 *
 * do_huge_pmd_anonymous_page() is hooked for PMD size, and do_swap_page() for
 * swap-in.
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
 * Kernel functions that do_anonymous_page() calls before it asks for sizes, and
 * that may sleep: they allocate a page table and the anon_vma.
 */
DEFINE_STATIC_CALL_NULL(mmp_pte_alloc, mmp_alloc_table);
DEFINE_STATIC_CALL_NULL(mmp_anon_prepare, mmp_replace_huge);

/*
 * Returns true if this task has a policy or a shadow policy, or if faults are
 * timed. If not, this CPU caches that until bindings, arms of the experiment or
 * settings change, and the task's next faults return early.
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
 * mmp_policy_decides - test whether a policy is asked about the faults of
 * current
 * @mm: the address space that current works on
 */
bool mmp_policy_decides(const struct mm_struct *mm)
{
	guard(mmp_ask)();
	return mmp_is_asked(MM_POLICY_ANON_ORDER) && decides(mm);
}

/*
 * Caches that the policy has answered the next faults in advance. The entry
 * answers these faults with a page until bindings, arms or settings change, or
 * an observer needs each fault. @epoch is mmp_epoch from before the policy was
 * asked.
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

/*
 * Stores the fault and the policy's answer for when the kernel asks for sizes.
 * Preemption is off.
 */
static void question_note(const struct vm_fault *vmf, unsigned long answer)
{
	__this_cpu_write(mmp_question.vmf, vmf);
	__this_cpu_write(mmp_question.key, READ_ONCE(mmp_epoch) ^ vmf->address);
	__this_cpu_write(mmp_question.answer, answer);
	__this_cpu_write(mmp_question.page, 0);
}

/*
 * Stores the policy's answer of a single page, or of stock, for when the kernel
 * asks for sizes, and for the next faults.
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
		if (mmp_is_asked(MM_POLICY_ANON_ORDER))
			decides(mm);
	} else if (__this_cpu_read(mmp_ahead)) {
		keep_ahead(mm, epoch);
	}
	return answer;
}

/*
 * Stores the policy's answer of large folios for when the kernel asks for
 * sizes.
 *
 * Context: preemption is off.
 */
static __always_inline void keep_large(unsigned long answer)
{
	__this_cpu_write(mmp_question.answer, answer);
	__this_cpu_write(mmp_question.page, 0);
}

/*
 * Asks the policy about a write to a page that is not present, and stores the
 * answer for when the kernel asks for sizes. Returns the answer, or 0 if
 * nothing needs to run after the fault. Returns 0 for a VMA with userfaultfd,
 * whose owner may delay the fault without limit.
 *
 * Context: called by mmp_entry_fault, which has turned preemption off; this
 * function turns it on.
 */
notrace __noendbr unsigned long mmp_wants_fault(struct vm_fault *vmf)
{
	unsigned long answer = MM_POLICY_STOCK;

	rcu_lock_acquire(&rcu_lock_map);
	__this_cpu_write(mmp_ahead, 0);
	if (mmp_is_asked(MM_POLICY_ANON_ORDER)) {
		if (unlikely(!(vmf->flags & FAULT_FLAG_ORIG_PTE_VALID)) &&	/* no page table */
		    !mmp_pmd_size_asked(vmf->vma))
			/* policies expect to be asked for PMD size first */
			mmp_anon_orders(vmf, MM_POLICY_PMD);
		answer = mmp_anon_orders(vmf, MM_POLICY_PTE);
	}
	if (answer <= MM_POLICY_STOCK)
		answer = keep_small(vmf, answer);
	else
		keep_large(answer);
	mmp_ask_end();
	if (static_branch_unlikely(&mmp_timing) && !userfaultfd_armed(vmf->vma))
		return answer | MMP_TOLD;
	return answer > MM_POLICY_STOCK ? answer : 0;
}

/*
 * Marks a fault as a swap-in when do_swap_page() begins. The policy is asked
 * later, and only if do_swap_page() asks for sizes.
 */
notrace __noendbr struct vm_fault *mmp_note_swapin(struct vm_fault *vmf)
{
	guard(preempt)();
	question_note(vmf, MMP_SWAPIN_ASKS);
	return vmf;
}

/* Returns the orders of @asked (a bitmap) that the policy allows for a swap-in. */
unsigned long mmp_ask_swapin(struct vm_area_struct *vma, unsigned long vm_flags,
			     unsigned long asked)
{
	unsigned long answer = MM_POLICY_STOCK;

	scoped_guard(mmp_ask) {
		const struct mmp_question *question = this_cpu_ptr(&mmp_question);
		const struct vm_fault *vmf = question->vmf;

		if (mmp_is_asked(MM_POLICY_ANON_ORDER) && vmf && object_is_on_stack(vmf) &&
		    vmf->vma == vma && question->key == (READ_ONCE(mmp_epoch) ^ vmf->address) &&
		    question->answer == MMP_SWAPIN_ASKS && decides(vma->vm_mm))
			answer = mmp_anon_orders(vmf, MM_POLICY_SWAPIN);
	}
	return answer & MM_POLICY_STOCK ? mmp_sizes_admin(vm_flags, asked) : asked & answer;
}

/*
 * Count of a process's anonymous pages: this CPU's part and the shared sum. The
 * difference of two counts is the number of pages that a fault has mapped,
 * unless the task was switched out in between.
 */
struct counted {
	unsigned long switches;
	const s32 *part;
	s64 pages;
};

/*
 * Reads the count of anonymous pages. Context: preemption may be on; a move to
 * another CPU during the reads changes the number of switches.
 */
static __always_inline struct counted counted(const struct mm_struct *mm)
{
	const struct percpu_counter *pages = &mm->rss_stat[MM_ANONPAGES];
	struct counted count = { .switches = current->nvcsw + current->nivcsw };

	barrier();
	count.part = raw_cpu_ptr(pages->counters);
	count.pages = READ_ONCE(*count.part) + READ_ONCE(pages->count);
	return count;
}

#define UNKNOWN_PAGES	(-1L)

/*
 * Returns the number of pages that this fault has mapped; 0 if another thread
 * was faster, as the kernel has then released this fault's folio. Reclaim by
 * this fault and large changes of the sum by other CPUs falsify the number, but
 * cannot turn it into the size of the requested folio unless this fault has
 * mapped that folio. After a move to another CPU the count cannot tell, and
 * this returns UNKNOWN_PAGES.
 *
 * Context: preemption is off.
 */
static __always_inline long pages_mapped(struct counted before, const struct mm_struct *mm)
{
	const struct counted now = counted(mm);

	if (likely(now.switches == before.switches))
		return now.pages - before.pages;
	return now.part == before.part && now.pages == before.pages ? 0 : UNKNOWN_PAGES;
}

/*
 * Returns the order of the folio that @entry maps at @address; -1 if there is none, or if a fault
 * there cannot have mapped it.
 */
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

/*
 * Clears the accessed bits of the first and last page of a folio, except the
 * faulting one. policy_mapped() in the kernel's hooks does so too. @pte is
 * the entry of the faulting page.
 */
static __always_inline void make_ends_old(const struct vm_fault *vmf, pte_t *pte, int order)
{
	const int first = -(int)(vmf->address >> PAGE_SHIFT & (BIT(order) - 1));
	const int last = first + (int)BIT(order) - 1;

	if (first)
		mmp_make_old(pte + first);
	if (last)
		mmp_make_old(pte + last);
}

/* Reports to the policy the folio that the page table entry at @pte maps. */
static void tell_mapped(struct vm_fault *vmf, pte_t *pte)
{
	const int order = order_mapped(mmp_read_pte(pte), vmf->address);

	if (order < 0 || (!order && !static_branch_unlikely(&mmp_timing)))
		return;
	if (mmp_anon_mapped(vmf, order))
		make_ends_old(vmf, pte, order);
}

/*
 * Reports to the policy the folio that the page table shows for the fault. The page table may have
 * been freed by now, so this locks it as the kernel does: it takes the lock and reads the PMD
 * again.
 *
 * Context: preemption is off.
 */
static noinline void look_at_mapped(struct vm_fault *vmf)
{
	pmd_t pmd = pmdp_get_lockless(vmf->pmd);
	spinlock_t *lock;	/* lock of the page table */

	if (!mmp_is_table(pmd))
		return;
	lock = pte_lockptr(vmf->vma->vm_mm, &pmd);
	spin_lock(lock);
	if (pmd_same(pmd, pmdp_get_lockless(vmf->pmd)))
		tell_mapped(vmf, (pte_t *)mmp_table(pmd) + pte_index(vmf->address));
	spin_unlock(lock);
}

/*
 * Reports to the policy a folio of the order that it has requested, without a look at the page
 * table. An accessed bit that is cleared by mistake, because another task has changed the entry,
 * does no harm.
 *
 * Context: preemption is off, so a page table that the PMD still points to is not freed.
 */
static __always_inline void tell_requested(struct vm_fault *vmf, int order)
{
	const bool make_old = mmp_anon_mapped(vmf, order);
	const unsigned long table = mmp_table_bits(pmdp_get_lockless(vmf->pmd));

	if (make_old && mmp_bits_table(table))
		make_ends_old(vmf, (pte_t *)mmp_table_at(table) + pte_index(vmf->address), order);
}

/*
 * Reports to the policy the folio that this fault has mapped. Does nothing if another thread was
 * faster. Reads the page table only if the count of pages does not show a folio of the order that
 * the policy has requested.
 */
static __always_inline void fault_mapped(struct vm_fault *vmf, struct counted before,
					 unsigned long answer)
{
	const int order = __fls((answer & ~MMP_TOLD) | BIT(0));
	long pages;

	guard(mmp_ask)();
	pages = pages_mapped(before, vmf->vma->vm_mm);
	if (!pages || !mmp_is_asked(MM_POLICY_ANON_ORDER))
		return;
	if (MMP_MAKES_OLD_UNLOCKED && likely(pages == BIT(order)) && order)
		tell_requested(vmf, order);
	else
		look_at_mapped(vmf);
}

/*
 * Does everything in do_anonymous_page() that may sleep before the kernel asks
 * for sizes, and then stores the answer again, because other tasks may have
 * overwritten it while this one slept. An error here occurs again in the
 * kernel, which handles it.
 */
static noinline void fault_prepare(struct vm_fault *vmf, unsigned long answer)
{
	struct vm_area_struct *vma = vmf->vma;

	if (pmd_none(pmdp_get_lockless(vmf->pmd)))
		static_call(mmp_pte_alloc)(vma->vm_mm, vmf->pmd);
	if (!vma->anon_vma)
		static_call(mmp_anon_prepare)(vmf);
	guard(preempt)();
	question_note(vmf, answer & ~MMP_TOLD);
}

/* Returns true if the fault must first allocate a page table or an anon_vma, which may sleep. */
static __always_inline bool needs_to_prepare(const struct vm_fault *vmf)
{
	const struct vm_area_struct *vma = vmf->vma;

	return !(vma->vm_flags & VM_SHARED) &&
	       (!vma->anon_vma || pmd_none(pmdp_get_lockless(vmf->pmd)));
}

vm_fault_t mmp_replace_fault(struct vm_fault *vmf, unsigned long answer)
{
	struct counted before;
	vm_fault_t ret;
	int cpu;

	mmp_call_enter();
	if (unlikely(needs_to_prepare(vmf)))
		fault_prepare(vmf, answer);
	before = counted(vmf->vma->vm_mm);
	cpu = mmp_unfold_begin(vmf, answer);
	ret = static_call(mmp_fault_original)(vmf);
	mmp_unfold_end(vmf, cpu);
	if (!ret)
		fault_mapped(vmf, before, answer);
	mmp_call_leave();
	return ret;
}

/*
 * Returns true if mmp_replace_huge() must run in place of do_huge_pmd_anonymous_page(). A fault
 * that may wait for a userfaultfd must not have a frame of the module on its stack.
 */
bool mmp_wants_huge(struct vm_fault *vmf)
{
	return !userfaultfd_armed(vmf->vma) && mmp_policy_decides(vmf->vma->vm_mm);
}

/*
 * Returns true if the fault may get a PMD-sized folio. If not, the kernel
 * continues as if that size were disabled.
 */
static bool huge_is_wanted(const struct vm_fault *vmf)
{
	unsigned long answer = mmp_ask(MM_POLICY_ANON_ORDER, MM_POLICY_STOCK, anon_orders,
				       vmf, MM_POLICY_PMD);

	if (answer & MM_POLICY_STOCK)
		answer = mmp_sizes_admin(vmf->vma->vm_flags, BIT(PMD_ORDER));
	return answer & BIT(PMD_ORDER);
}

/*
 * Returns the number of pages that this fault has mapped, as pages_mapped(), but may be called with
 * preemption on.
 */
static long pages_mapped_now(struct counted before, const struct mm_struct *mm)
{
	guard(preempt)();
	return pages_mapped(before, mm);
}

static vm_fault_t huge_if_wanted(struct vm_fault *vmf)
{
	struct counted before = counted(vmf->vma->vm_mm);
	vm_fault_t ret;

	if (!huge_is_wanted(vmf)) {
		mmp_collapse_later(vmf->vma);
		return VM_FAULT_FALLBACK;
	}
	ret = static_call(mmp_huge_original)(vmf);
	if (!ret && pages_mapped_now(before, vmf->vma->vm_mm))
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

/*
 * Makes the static calls of this file call the kernel functions that mmp_needs_find()
 * and mmp_call_find() have found. Context: after these two.
 */
void mmp_fault_found(void)
{
	static_call_update(mmp_pte_alloc, mmp_found(MMP_NEED_pte_alloc));
	static_call_update(mmp_anon_prepare, mmp_found(MMP_NEED_anon_prepare));
	static_call_update(mmp_fault_original, mmp_call_original(&mmp_call_fault, 0));
	static_call_update(mmp_huge_original, mmp_call_original(&mmp_call_rare, 0));
}
