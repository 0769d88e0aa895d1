// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks of 16 entries that the kernel folds into one for the TLB (contpte).
 * The CPU may set the accessed bit of any entry of a folded block, so accessed
 * bits tell the use of a single page only in blocks that are not folded.
 *
 * A policy that decides by use needs the accessed bits of the first and last
 * page of its folios. So the module has the first and last block of such a
 * folio mapped unfolded. The kernel folds the blocks in between, and folios of
 * all other policies and processes, as it does without the module.
 *
 * The kernel may fold such a block later, when it changes the block's last
 * entry: in a fork, mremap, mprotect, migration, or after a NUMA hint. The
 * module lets it do so once both ends of the block were used, and keeps the
 * block unfolded until then. The module itself never folds a block.
 */
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>

#include "../../anon_order/table.h"
#include "../../provider/direct.h"
#include "fold.h"

unsigned long mmp_back_fold[MMP_FUNCTIONS];

/*
 * The order of these functions must match mmp_entry_fold in entry.S, which tells them apart by
 * index.
 */
struct mmp_call mmp_call_fold = {
	.entry = mmp_entry_fold,
	.need = { MMP_NEED_set_ptes, MMP_NEED_try_fold },
	.back = mmp_back_fold,
};

DEFINE_STATIC_CALL_NULL(set_ptes_original, mmp_replace_set_ptes);

/*
 * The fault in progress on this CPU whose folio must get unfolded blocks, or
 * NULL.
 */
static DEFINE_PER_CPU(const struct vm_fault *, unfolding);

/*
 * Returns true if the policy that decides for @mm reads accessed bits. @vma may
 * be NULL. No policy is asked while hooks are being detached, and a profile may
 * have no settings then. Context: RCU read side.
 */
static bool judges_by_use(const struct mm_struct *mm, const struct vm_area_struct *vma)
{
	const struct mmp_settings *settings;
	const struct mmp_policy *policy;

	if (!mmp_is_asked(MM_POLICY_ANON_ORDER))
		return false;
	settings = rcu_dereference(mmp_profile_of(mm)->settings);
	policy = vma ? anon_order_policy(settings, vma) : settings->active[MM_POLICY_ANON_ORDER];
	return policy && policy->witness;
}

/**
 * mmp_unfold_begin - let the outermost blocks of a large folio be mapped unfolded
 * @vmf: the fault
 * @answer: the policy's answer
 *
 * Applies under the conditions of &mm_policy_ops.anon_mapped. If the task moves
 * to another CPU before the folio is mapped, the kernel folds the blocks as it
 * does without the module. The module clears no accessed bit in a folded block,
 * so the policy later sees the folio as used.
 *
 * Return: this CPU's number if blocks are to be mapped unfolded, otherwise -1;
 * either value is to be passed to mmp_unfold_end().
 */
int mmp_unfold_begin(const struct vm_fault *vmf, unsigned long answer)
{
	if (!((answer & ~MMP_TOLD) >> ilog2(CONT_PTES)) || !(vmf->flags & FAULT_FLAG_USER))
		return -1;
	guard(mmp_ask)();
	if (!judges_by_use(vmf->vma->vm_mm, vmf->vma))
		return -1;
	__this_cpu_write(unfolding, vmf);
	return smp_processor_id();
}

/*
 * Clears the state of mmp_unfold_begin() after the kernel has handled the
 * fault. Another task may have stored its fault on @cpu in between, so this
 * clears the variable only if it still holds @vmf.
 */
void mmp_unfold_end(const struct vm_fault *vmf, int cpu)
{
	if (cpu >= 0)
		cmpxchg_relaxed(per_cpu_ptr(&unfolding, cpu), vmf, NULL);
}

/*
 * Returns true if contpte_set_ptes() maps the folio of this task's fault, so the module must keep
 * its first and last block unfolded. A fault on another stack belongs to another task.
 */
notrace bool mmp_wants_set_ptes(struct mm_struct *mm, unsigned long addr, pte_t *ptep, pte_t pte,
				unsigned int nr)
{
	const struct vm_fault *vmf = this_cpu_read(unfolding);

	return vmf && !(((unsigned long)vmf ^ current_stack_pointer) >> THREAD_SHIFT) &&
	       vmf->pte == ptep && nr >= CONT_PTES;
}

/*
 * Maps @nr pages beginning with page @first. In each call, the kernel folds only blocks of which
 * the call maps all pages.
 */
static void map_part(struct mm_struct *mm, unsigned long addr, pte_t *ptep, pte_t pte,
		     unsigned int first, unsigned int nr)
{
	static_call(set_ptes_original)(mm, addr + first * PAGE_SIZE, ptep + first,
				       pte_advance_pfn(pte, first), nr);
}

void mmp_replace_set_ptes(struct mm_struct *mm, unsigned long addr, pte_t *ptep, pte_t pte,
			  unsigned int nr)
{
	const unsigned int half = CONT_PTES / 2;

	map_part(mm, addr, ptep, pte, 0, half);
	map_part(mm, addr, ptep, pte, half, half);
	if (nr == CONT_PTES)
		return;
	if (nr > 2 * CONT_PTES)
		map_part(mm, addr, ptep, pte, CONT_PTES, nr - 2 * CONT_PTES);
	map_part(mm, addr, ptep, pte, nr - CONT_PTES, half);
	map_part(mm, addr, ptep, pte, nr - half, half);
}

/*
 * Returns true if the kernel must not fold the block at @ptep: its first or last page is not
 * accessed yet, and a policy reads its accessed bits.
 */
notrace bool mmp_wants_unfolded(struct mm_struct *mm, unsigned long addr, pte_t *ptep, pte_t pte)
{
	const pte_t *block = PTR_ALIGN_DOWN(ptep, CONT_PTES * sizeof(*ptep));

	if (pte_young(READ_ONCE(block[0])) && pte_young(READ_ONCE(block[CONT_PTES - 1])))
		return false;
	guard(mmp_ask)();
	return judges_by_use(mm, NULL);
}

/*
 * Runs in place of __contpte_try_fold(), which would fold a block of page table entries: does
 * nothing, so the block stays unfolded.
 */
void mmp_replace_try_fold(struct mm_struct *mm, unsigned long addr, pte_t *ptep, pte_t pte)
{
}

/*
 * Makes the static call of this file call contpte_set_ptes(), which mmp_call_find() has
 * found. Context: after mmp_needs_find() and mmp_call_find().
 */
void mmp_fold_found(void)
{
	static_call_update(set_ptes_original, mmp_call_original(&mmp_call_fold, 0));
}
