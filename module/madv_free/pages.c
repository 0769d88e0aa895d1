// SPDX-License-Identifier: GPL-2.0
/* What page tables say: how many pages are mapped, and how many lazily freed. */
#include <linux/mm.h>
#include <linux/swap.h>

#include "../compat.h"
#include "pages.h"

/*
 * The entry of the PMD of @addr, and the end of what it, or an empty entry above
 * it, maps. RCU read side: not every kernel keeps tables that map nothing.
 */
static pmd_t pages_pmd_at(struct mm_struct *mm, unsigned long addr, unsigned long *end)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t *pud;

	*end = pgd_addr_end(addr, *end);
	if (pgd_none(READ_ONCE(*pgd)))
		return __pmd(0);
	p4d = p4d_offset(pgd, addr);
	*end = p4d_addr_end(addr, *end);
	if (p4d_none(READ_ONCE(*p4d)))
		return __pmd(0);
	pud = pud_offset(p4d, addr);
	*end = pud_addr_end(addr, *end);
	if (pud_none(READ_ONCE(*pud)) || pud_leaf(READ_ONCE(*pud)))
		return __pmd(0);
	*end = pmd_addr_end(addr, *end);
	return pmdp_get_lockless(pmd_offset(pud, addr));
}

/*
 * Is a page that its entry says is clean lazily freed? It need not be on the
 * list of those yet, but what came from swap is still in swap, or dirty.
 */
static bool pages_is_lazy(const struct page *page)
{
	const struct folio *folio = page_folio(page);

	return folio_test_anon(folio) &&
	       !(mmp_folio_flags(folio) & (BIT(PG_dirty) | BIT(PG_swapcache)));
}

/* On its way to another place; maybe clean. */
static noinline bool pages_is_moving(pte_t pte)
{
	return !pte_none(pte) && mmp_is_moving(pte);
}

static __always_inline bool pages_counts(pte_t pte, bool lazy)
{
	if (!pte_present(pte))
		return pages_is_moving(pte);
	if (lazy && pte_dirty(pte))
		return false;
	return !pte_special(pte) && (!lazy || pages_is_lazy(pte_page(pte)));
}

static bool pages_counts_huge(pmd_t pmd, bool lazy)
{
	if (!pmd_present(pmd))
		return !pmd_none(pmd);
	return !lazy || (!pmd_dirty(pmd) && pages_is_lazy(pmd_page(pmd)));
}

/*
 * How many pages of a range are mapped, or lazily freed, up to the end of the
 * page table, or of a hole above it; *@end comes back as that.
 */
static __always_inline unsigned long pages_count(struct mm_struct *mm, unsigned long addr,
						 unsigned long *end, bool lazy)
{
	pmd_t pmd = pages_pmd_at(mm, addr, end);
	unsigned long n = (*end - addr) / PAGE_SIZE, pages = 0;
	const pte_t *pte, *last;

	if (!mmp_is_table(pmd))
		return pages_counts_huge(pmd, lazy) ? n : 0;
	pte = mmp_table(pmd) + pte_index(addr);
	for (last = pte + n; pte < last; pte++)
		pages += pages_counts(ptep_get_lockless((pte_t *)pte), lazy);
	return pages;
}

/**
 * mmp_pages_mapped - how many pages of a VMA are mapped from an address on
 * @mm: its address space
 * @addr: where
 * @end: where to end; comes back as the end of the page table, or of a hole, if
 *	that comes first
 *
 * Context: as for &mm_policy_ops.madv_free_eager.
 */
unsigned long mmp_pages_mapped(struct mm_struct *mm, unsigned long addr,
			       unsigned long *end)
{
	return pages_count(mm, addr, end, false);
}

/**
 * mmp_pages_lazy_at - how many pages are lazily freed from an address on
 * @vma: where
 * @addr: in it
 * @end: where to end, at most at the end of @vma; comes back as the end of the
 *	page table, or of a hole, if that comes first
 *
 * Context: mmap_lock is held; RCU read side.
 */
unsigned long mmp_pages_lazy_at(struct vm_area_struct *vma, unsigned long addr,
				unsigned long *end)
{
	if (!vma_is_anonymous(vma) || (vma->vm_flags & VM_SPECIAL))
		return 0;
	return pages_count(vma->vm_mm, addr, end, true);
}

/**
 * mmp_pages_lazy - how many pages of an area are lazily freed, of whatever VMAs
 * @mm: the address space
 * @start: of a range within what one page table maps
 * @end: of the range
 *
 * Context: as for &mm_policy_ops.madv_free_eager, or with mmap_lock; RCU read side.
 * Return: how many; all where nobody can tell now.
 */
unsigned long mmp_pages_lazy(struct mm_struct *mm, unsigned long start,
			     unsigned long end)
{
	struct vm_area_struct *vma;
	unsigned long pages = 0;

	VMA_ITERATOR(vmi, mm, start);

	if (!mmp_vmas_trylock(mm))
		return (end - start) / PAGE_SIZE;
	for_each_vma_range(vmi, vma, end) {
		unsigned long next = min(end, vma->vm_end);

		pages += mmp_pages_lazy_at(vma, max(start, vma->vm_start), &next);
	}
	mmp_vmas_unlock(mm);
	return pages;
}
