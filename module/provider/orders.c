// SPDX-License-Identifier: GPL-2.0
/*
 * The point anon_order: __thp_vma_allowable_orders() is called wherever the kernel asks
 * which sizes a VMA may have. It is not told of the place of a fault, so that is
 * reconstructed.
 */
#include <linux/mm.h>
#include <linux/rcupdate.h>
#include <linux/userfaultfd_k.h>
#include <asm/special_insns.h>

#include "direct.h"

static struct mmp_call orders = {
	.entry = mmp_entry_orders,
	.function = { "__thp_vma_allowable_orders" },
	.prototype = {
		"long unsigned int(vm_area_struct*, long unsigned int, long unsigned int, long unsigned int)",
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

/* In a page table, there is something already if it comes from swap. */
static enum mm_policy_site site_of(const struct vm_fault *vmf, unsigned long asked)
{
	pmd_t pmd = pmdp_get_lockless(vmf->pmd);
	pte_t pte;

	if (asked == BIT(PMD_ORDER))
		return MM_POLICY_PMD;
	if (!mmp_is_table(pmd))
		return MM_POLICY_PTE;
	pte = ptep_get_lockless((pte_t *)mmp_table(pmd) + pte_index(vmf->address));
	return pte_none(pte) || pte_present(pte) ? MM_POLICY_PTE : MM_POLICY_SWAPIN;
}

/*
 * The address of a fault is still in CR2, unless another task had one here meanwhile.
 * Memory that the kernel populates by itself was not faulted at all. For an address
 * that is wrong the answer may be a bad one, and no more than that.
 */
static unsigned long ask_at(const struct mm_policy_ops *ops, struct vm_area_struct *vma,
			    unsigned long asked)
{
	unsigned long address = read_cr2() & PAGE_MASK;
	const bool inside = address - vma->vm_start < vma->vm_end - vma->vm_start;
	const struct vm_fault vmf = {
		.vma = vma,
		.address = inside ? address : vma->vm_start,
		.pmd = inside ? pmd_of(vma->vm_mm, address) : nothing(vma->vm_start),
	};

	return ops->anon_orders(&vmf, site_of(&vmf, asked));
}

static unsigned long ask_for_fault(struct vm_area_struct *vma, unsigned long vm_flags,
				   unsigned long asked)
{
	const struct mm_policy_ops *ops;

	guard(rcu)();
	ops = rcu_dereference(mmp_asked[MM_POLICY_ANON_ORDER]);
	if (!ops || userfaultfd_armed(vma) || vma_thp_disabled(vma, vm_flags))
		return MM_POLICY_STOCK;
	return ask_at(ops, vma, asked);
}

static unsigned long ask_for_khugepaged(struct vm_area_struct *vma, unsigned long asked)
{
	const struct mm_policy_ops *ops;

	guard(rcu)();
	ops = rcu_dereference(mmp_asked[MM_POLICY_ANON_ORDER]);
	return ops ? ops->collapse_orders(vma, asked) : asked;
}

/*
 * What the kernel asks for, in place of @asked: in faults what the policy says, for
 * others what the administrator has given. With MADV_COLLAPSE that does not matter.
 */
unsigned long mmp_ask_orders(struct vm_area_struct *vma, unsigned long vm_flags,
			     unsigned long tva_flags, unsigned long asked)
{
	unsigned long answer;

	if (!(tva_flags & TVA_ENFORCE_SYSFS) || !vma_is_anonymous(vma))
		return asked;
	if (tva_flags & TVA_IN_PF) {
		answer = ask_for_fault(vma, vm_flags, asked);
		if (!(answer & MM_POLICY_STOCK))
			return asked & answer;
	}
	asked &= mmp_sizes_given(vm_flags);
	if (!(tva_flags & (TVA_IN_PF | TVA_SMAPS)) && asked && (current->flags & PF_KTHREAD))
		return ask_for_khugepaged(vma, asked);
	return asked;
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
