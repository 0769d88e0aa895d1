// SPDX-License-Identifier: GPL-2.0
/* What page tables say: how many pages are mapped, and how many lazily freed. */
#include <linux/mm.h>
#include <linux/swap.h>

#include "../compat.h"
#include "../sense/pmd.h"
#include "lazyfree.h"
#include "pages.h"

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

/* Is the page on its way to another place? It may be clean. */
static noinline bool pages_is_moving(pte_t pte)
{
	return !pte_none(pte) && mmp_is_moving(pte);
}

/* Which pages count: all that are mapped, or only some of them. */
enum pages { MAPPED, LAZY, PINNED };

static __always_inline bool pages_counts_page(const struct page *page, bool dirty,
					      enum pages which)
{
	if (which == LAZY)
		return !dirty && pages_is_lazy(page);
	return which == MAPPED || folio_maybe_dma_pinned((struct folio *)page_folio(page));
}

/* A page on its way to another place is not pinned. */
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
 * How many pages of a range count, up to the end of the
 * page table, or of a hole above it; *@end comes back as that. Without @look, all
 * that a page table can map.
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
 * mmp_pages_mapped - how many pages of a VMA are mapped from an address on
 * @mm: its address space
 * @addr: where
 * @end: where to end; comes back as the end of the page table, or of a hole, if
 *	that comes first
 * @look: at entries? Without, all pages of a page table are taken to be mapped.
 *
 * Context: as for &mm_policy_ops.madv_free_eager.
 */
unsigned long mmp_pages_mapped(struct mm_struct *mm, unsigned long addr,
			       unsigned long *end, bool look)
{
	return pages_count(mm, addr, end, MAPPED, look);
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
	return pages_count(vma->vm_mm, addr, end, LAZY, true);
}

/**
 * mmp_pages_pinned - is a page of a range pinned?
 * @mm: its address space
 * @addr: where the range begins
 * @end: where it ends
 *
 * Context: as for &mm_policy_ops.madv_free_eager.
 * Return: yes also where it would take too long to tell.
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
 * mmp_pages_lazy - how many pages of an area are lazily freed, of whatever VMAs
 * @mm: the address space
 * @start: of a range within what one page table maps
 * @end: of the range
 *
 * Context: as for &mm_policy_ops.madv_free_eager, or with mmap_lock; RCU read side.
 * Return: how many; %MMP_LAZY_UNKNOWN where somebody holds the locks of the VMAs.
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
