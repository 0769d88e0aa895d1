// SPDX-License-Identifier: GPL-2.0
/* Counts mapped and lazily freed pages in page tables. */
#include <linux/mm.h>
#include <linux/swap.h>

#include "../compat.h"
#include "../sense/pmd.h"
#include "lazyfree.h"
#include "pages.h"

/*
 * Returns true if a page is lazily freed, given that its page table entry is
 * clean. The page may not be on the kernel's lazyfree list yet. Pages from swap do not
 * count: they are still in the swap cache, or the folio is dirty.
 */
static bool pages_is_lazy(const struct page *page)
{
	const struct folio *folio = page_folio(page);

	return folio_test_anon(folio) &&
	       !(mmp_folio_flags(folio) & (BIT(PG_dirty) | BIT(PG_swapcache)));
}

/*
 * Returns true for a migration entry. The page under migration may be clean,
 * and so lazily freed.
 */
static noinline bool pages_is_moving(pte_t pte)
{
	return !pte_none(pte) && mmp_is_moving(pte);
}

/* Pages to count: all mapped pages, only the lazily freed ones, or only the pinned ones. */
enum pages { MAPPED, LAZY, PINNED };

static __always_inline bool pages_counts_page(const struct page *page, bool dirty,
					      enum pages which)
{
	if (which == LAZY)
		return !dirty && pages_is_lazy(page);
	return which == MAPPED || folio_maybe_dma_pinned((struct folio *)page_folio(page));
}

/*
 * Returns true if the page behind a page table entry counts: as mapped, lazily freed or pinned, as
 * @which says. A page under migration is never pinned.
 */
static __always_inline bool pages_counts(pte_t pte, enum pages which)
{
	if (!pte_present(pte))
		return which != PINNED && pages_is_moving(pte);
	return !pte_special(pte) && pages_counts_page(pte_page(pte), pte_dirty(pte), which);
}

static bool pages_counts_huge(pmd_t pmd, enum pages which)
{
	if (!pmd_present(pmd))
		return which != PINNED && !pmd_none(pmd);
	return pages_counts_page(pmd_page(pmd), pmd_dirty(pmd), which);
}

/*
 * Counts pages of a range up to the end of the page table. If there is no page table, counts up
 * to the end of the hole. Sets *@end to the address reached. If @look is false, reads no entry,
 * and returns the number of pages that the page table can map.
 */
static __always_inline unsigned long pages_count(struct mm_struct *mm, unsigned long addr,
						 unsigned long *end, enum pages which,
						 bool look)
{
	pmd_t pmd = mmp_pmd_at(mm, addr, end);
	unsigned long n = (*end - addr) / PAGE_SIZE, pages = 0;
	const pte_t *pte, *last;

	if (!mmp_is_table(pmd))
		return pages_counts_huge(pmd, which) ? n : 0;
	if (!look)
		return n;
	pte = mmp_table(pmd) + pte_index(addr);
	for (last = pte + n; pte < last; pte++)
		pages += pages_counts(ptep_get_lockless((pte_t *)pte), which);
	return pages;
}

/**
 * mmp_pages_mapped - count mapped pages of a VMA from an address on
 * @mm: its address space
 * @addr: start
 * @end: limit; set to the end of the page table, or of a hole, if that comes first
 * @look: true to read page table entries; false to count all pages that a page table can map
 *
 * Context: as for &mm_policy_ops.madv_free_eager.
 * Return: the number of pages.
 */
unsigned long mmp_pages_mapped(struct mm_struct *mm, unsigned long addr,
			       unsigned long *end, bool look)
{
	return pages_count(mm, addr, end, MAPPED, look);
}

/**
 * mmp_pages_lazy_at - count lazily freed pages from an address on
 * @vma: VMA with the range
 * @addr: start
 * @end: limit, at most the end of @vma; set to the end of the page table, or of a hole, if that
 *	comes first
 *
 * Context: mmap_lock is held; RCU read side.
 * Return: the number of pages.
 */
unsigned long mmp_pages_lazy_at(struct vm_area_struct *vma, unsigned long addr,
				unsigned long *end)
{
	if (!vma_is_anonymous(vma) || (vma->vm_flags & VM_SPECIAL))
		return 0;
	return pages_count(vma->vm_mm, addr, end, LAZY, true);
}

/**
 * mmp_pages_pinned - test whether a range has a pinned page
 * @mm: its address space
 * @addr: start of the range
 * @end: end of the range
 *
 * Context: as for &mm_policy_ops.madv_free_eager.
 * Return: true also if the test would take too long.
 */
bool mmp_pages_pinned(struct mm_struct *mm, unsigned long addr, unsigned long end)
{
	unsigned int steps = 0;
	unsigned long next;

	for (; addr < end; addr = next) {
		next = end;
		if (steps++ == MMP_LAZY_COUNTED || pages_count(mm, addr, &next, PINNED, true))
			return true;
	}
	return false;
}

/**
 * mmp_pages_lazy - count lazily freed pages of an area, over all its VMAs
 * @mm: the address space
 * @start: start of a range that one page table maps
 * @end: end of the range
 *
 * Context: as for &mm_policy_ops.madv_free_eager, or with mmap_lock; RCU read side.
 * Return: the number of pages; %MMP_LAZY_UNKNOWN if another task holds a lock of the VMAs.
 */
unsigned long mmp_pages_lazy(struct mm_struct *mm, unsigned long start,
			     unsigned long end)
{
	struct vm_area_struct *vma;
	unsigned long pages = 0;

	VMA_ITERATOR(vmi, mm, start);

	if (!mmp_vmas_trylock(mm))
		return MMP_LAZY_UNKNOWN;
	for_each_vma_range(vmi, vma, end) {
		unsigned long next = min(end, vma->vm_end);

		pages += mmp_pages_lazy_at(vma, max(start, vma->vm_start), &next);
	}
	mmp_vmas_unlock(mm);
	return pages;
}
