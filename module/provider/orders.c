// SPDX-License-Identifier: GPL-2.0
/*
 * The point anon_order: __thp_vma_allowable_orders() is called wherever the kernel asks
 * which sizes a VMA may have. It is not told of the place of a fault, so that has to be
 * found.
 */
#include <linux/linkage.h>
#include <linux/mm.h>
#include <linux/objtool.h>
#include <linux/pagemap.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched/task_stack.h>
#include <linux/userfaultfd_k.h>
#include <asm/special_insns.h>

#include "../sense/whose.h"
#include "direct.h"

static struct mmp_call orders = {
	.entry = mmp_entry_orders,
	.function = { "__thp_vma_allowable_orders" },
	.prototype = {
		"long unsigned int(vm_area_struct*, " MMP_TVA ", long unsigned int)",
	},
};

/* A page of entries of which none is used. */
static pmd_t *nothing(unsigned long address)
{
	return (pmd_t *)empty_zero_page + pmd_index(address);
}

/* Tables that map a part of the VMA stay. */
static pmd_t *pmd_of(struct mm_struct *mm, unsigned long address)
{
	pgd_t *pgd = pgd_offset(mm, address);
	p4d_t *p4d;
	pud_t *pud;

	if (!pgd_present(READ_ONCE(*pgd)))
		return nothing(address);
	p4d = p4d_offset(pgd, address);
	if (!p4d_present(READ_ONCE(*p4d)))
		return nothing(address);
	pud = pud_offset(p4d, address);
	if (!pud_present(READ_ONCE(*pud)) || pud_leaf(READ_ONCE(*pud)))
		return nothing(address);
	return pmd_offset(pud, address);
}

/*
 * The address of a fault is still in CR2, unless another task had one here meanwhile.
 * Memory that the kernel populates by itself was not faulted at all. For an address
 * that is wrong the answer may be a bad one, and no more than that.
 */
static struct vm_fault reconstructed(struct vm_area_struct *vma)
{
	unsigned long address = read_cr2() & PAGE_MASK;
	const bool inside = address - vma->vm_start < vma->vm_end - vma->vm_start;
	struct vm_fault vmf = {
		.vma = vma,
		.address = inside ? address : vma->vm_start,
		.pmd = inside ? pmd_of(vma->vm_mm, address) : nothing(vma->vm_start),
	};
	pmd_t pmd = pmdp_get_lockless(vmf.pmd);

	if (mmp_is_table(pmd)) {
		vmf.orig_pte = ptep_get_lockless((pte_t *)mmp_table(pmd) +
						 pte_index(vmf.address));
		vmf.flags = FAULT_FLAG_ORIG_PTE_VALID;
	}
	return vmf;
}

/*
 * What the caller keeps in one of its registers is the fault itself, if it lies on the
 * stack and says of the VMA what is so: then nothing has to be reconstructed.
 */
static __no_kasan_or_inline bool is_fault(const struct vm_fault *maybe,
					  struct vm_area_struct *vma)
{
	const void *top = task_stack_page(current) + THREAD_SIZE;

	if ((unsigned long)maybe < current_stack_pointer || (const void *)(maybe + 1) > top)
		return false;
	return maybe->vma == vma && maybe->address >= vma->vm_start &&
	       maybe->address < vma->vm_end &&
	       maybe->pgoff == linear_page_index(vma, maybe->address);
}

/* In a page table, there is something already if it comes from swap. */
static enum mm_policy_site site_of(const struct vm_fault *vmf, unsigned long asked)
{
	if (asked == BIT(PMD_ORDER))
		return MM_POLICY_PMD;
	if (vmf->flags & FAULT_FLAG_ORIG_PTE_VALID && !pte_none(vmf->orig_pte) &&
	    !pte_present(vmf->orig_pte))
		return MM_POLICY_SWAPIN;
	return MM_POLICY_PTE;
}

static noinline unsigned long ask_reconstructed(struct vm_area_struct *vma,
						unsigned long asked)
{
	const struct vm_fault vmf = reconstructed(vma);

	return mmp_anon_orders(&vmf, site_of(&vmf, asked));
}

/* A task that has no policy here: its faults take a short way. Where they count. */
static DEFINE_PER_CPU(struct mmp_latest, spared);
static DEFINE_PER_CPU(u64 __percpu *, spared_stock);

/*
 * In each fault of everybody, so each instruction counts. For a task that is spared it
 * is mmp_is_kept(), and then what is given replaces what was asked for, in %rcx. No
 * register changes that is another argument or that the caller keeps. The rest has to
 * save them (entry.S): what to answer to others, and to be preempted afterwards.
 */
__naked notrace __noendbr void mmp_entry_orders(void)
{
	asm volatile(ANNOTATE_NOENDBR
	"	cmpl	%[fault], %%edx; jne	2f\n"
	"	cmpq	$0, %c[vm_ops](%%rdi); jne	2f\n"
	"	inc" MMP_COUNT __percpu_arg([count]) "\n"
	"	movq	%[now], %%r9\n"
	"	movq	" __percpu_arg([me]) ", %%r10\n"
	"	movq	%c[vm_mm](%%rdi), %%r8\n"
	"	xorq	%c[birth](%%r10), %%r8\n"
	"	cmpq	%%r8, " __percpu_arg([task]) "; jne	1f\n"
	"	cmpq	%%r9, " __percpu_arg([epoch]) "; jne	1f\n"
	"	movq	" __percpu_arg([stock]) ", %%r8\n"
	"	incq	%%gs:(%%r8)\n"
	"	testl	%[advised], %%esi; jne	4f\n"
	"	andq	%[given], %%rcx\n"
	"3:	dec" MMP_COUNT __percpu_arg([count]) "; je	mmp_entry_preempted\n"
	ASM_RET
	"1:	dec" MMP_COUNT __percpu_arg([count]) "\n"
	"2:	jmp	mmp_entry_asked\n"
	"4:	andq	%[given_advised], %%rcx\n"
	"	testl	%[advised], %%esi; jne	3b\n"	/* always: the compiler adds an end */
	: : [fault] "i" (MMP_TVA_FAULT), [advised] "i" (VM_HUGEPAGE),
	    [vm_ops] "i" (offsetof(struct vm_area_struct, vm_ops)),
	    [vm_mm] "i" (offsetof(struct vm_area_struct, vm_mm)),
	    [birth] "i" (offsetof(struct task_struct, start_boottime)),
	    [count] "m" (__my_cpu_var(mmp_this_preempt_count)),
	    [me] "m" (__my_cpu_var(mmp_this_task)), [now] "m" (mmp_epoch),
	    [task] "m" (__my_cpu_var(spared.task)),
	    [epoch] "m" (__my_cpu_var(spared.epoch)),
	    [stock] "m" (__my_cpu_var(spared_stock)),
	    [given] "m" (mmp_sizes_given[false]),
	    [given_advised] "m" (mmp_sizes_given[true]));
}

static bool spare(const struct mm_struct *mm)
{
	/* Pairs with mmp_whose_outdate(). */
	unsigned long now = smp_load_acquire(&mmp_epoch);
	struct mmp_profile *profile = mmp_profile_of(mm);
	const struct mmp_settings *settings = rcu_dereference(profile->settings);
	u64 __percpu *stock;

	if (settings->active[MM_POLICY_ANON_ORDER] || settings->shadow[MM_POLICY_ANON_ORDER])
		return false;
	stock = mmp_counters(profile, &mmp_point_anon_order) + MMP_STOCK;
	if (mmp_keep(&spared, mm, now, profile))
		__this_cpu_write(spared_stock, stock);
	__this_cpu_inc(*stock);
	return true;
}

static unsigned long ask_policy(struct vm_area_struct *vma, unsigned long asked,
				const struct vm_fault *maybe, const struct vm_fault *other)
{
	if (!rcu_access_pointer(mmp_asked[MM_POLICY_ANON_ORDER]) || spare(vma->vm_mm) ||
	    userfaultfd_armed(vma) || mmp_thp_disabled(vma))
		return MM_POLICY_STOCK;
	if (is_fault(maybe, vma))
		return mmp_anon_orders(maybe, site_of(maybe, asked));
	if (is_fault(other, vma))
		return mmp_anon_orders(other, site_of(other, asked));
	return ask_reconstructed(vma, asked);
}

static unsigned long given(unsigned long vm_flags, unsigned long asked)
{
	if (unlikely(vm_flags & VM_HUGEPAGE))
		return asked & READ_ONCE(mmp_sizes_given[true]);
	return asked & READ_ONCE(mmp_sizes_given[false]);
}

/* For RCU it is enough that preemption is off, and that takes less. */
static noinline unsigned long ask_in_fault(struct vm_area_struct *vma, unsigned long vm_flags,
					   unsigned long asked, const struct vm_fault *maybe,
					   const struct vm_fault *other)
{
	unsigned long answer;

	guard(preempt)();
	rcu_lock_acquire(&rcu_lock_map);
	answer = ask_policy(vma, asked, maybe, other);
	rcu_lock_release(&rcu_lock_map);
	return answer & MM_POLICY_STOCK ? given(vm_flags, asked) : asked & answer;
}

static unsigned long ask_for_khugepaged(struct vm_area_struct *vma, unsigned long asked)
{
	return mmp_ask(MM_POLICY_ANON_ORDER, asked, collapse_orders, vma, asked);
}

/* With MADV_COLLAPSE, what is given does not matter. */
static noinline unsigned long ask_elsewhere(struct vm_area_struct *vma,
					    unsigned long vm_flags, unsigned long why,
					    unsigned long asked)
{
	if (mmp_tva_forced(why) || !vma_is_anonymous(vma))
		return asked;
	asked = given(vm_flags, asked);
	if (mmp_tva_collapse(why) && asked && (current->flags & PF_KTHREAD))
		return ask_for_khugepaged(vma, asked);
	return asked;
}

/*
 * What the kernel asks for, in place of @asked: in faults what the policy says, for
 * others what the administrator has given.
 */
notrace __noendbr unsigned long mmp_ask_orders(struct vm_area_struct *vma,
					       unsigned long vm_flags,
					       unsigned long why, unsigned long asked,
					       const struct vm_fault *maybe,
					       const struct vm_fault *other)
{
	if (unlikely(!mmp_tva_fault(why) || !vma_is_anonymous(vma)))
		return ask_elsewhere(vma, vm_flags, why, asked);
	return ask_in_fault(vma, vm_flags, asked, maybe, other);
}

/* Somebody else wants the CPU. */
notrace __noendbr unsigned long mmp_preempted(struct vm_area_struct *vma,
					      unsigned long vm_flags, unsigned long why,
					      unsigned long answer)
{
	guard(preempt)();
	return answer;
}

/**
 * mmp_orders_find - can the point be had?
 * @reason: why not
 * @size: of that
 *
 * Context: as mmp_call_find().
 * Return: 0 or -EOPNOTSUPP.
 */
int mmp_orders_find(char *reason, size_t size)
{
	return mmp_sizes_find(reason, size) ?: mmp_call_find(&orders, reason, size);
}

/**
 * mmp_orders_hook - get ready to ask
 *
 * Context: may sleep.
 * Return: 0 or an error.
 */
int mmp_orders_hook(void)
{
	int err = mmp_sizes_shadow();

	if (err)
		return err;
	err = mmp_call_begin(&orders);
	if (err)
		mmp_sizes_unshadow();
	else
		mmp_sizes_open();
	return err;
}

/**
 * mmp_orders_unhook - as before mmp_orders_hook()
 *
 * Context: nobody is asked any more; may sleep.
 */
void mmp_orders_unhook(void)
{
	mmp_sizes_close();
	mmp_call_end(&orders);
	mmp_sizes_unshadow();
}
