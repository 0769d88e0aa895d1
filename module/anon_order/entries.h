/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Helpers that read page table entries and classify pages as empty, present or
 * used (accessed bit set). adaptive reads many entries for one answer, so it
 * combines the bits of several entries with AND or OR, and then tests the
 * result.
 *
 * A group is 16 kB of aligned memory; a block is 64 kB.
 */
#ifndef MMPOLICY_ENTRIES_H
#define MMPOLICY_ENTRIES_H

#include "anon_order.h"

#define GROUP_ORDER	2
#define BLOCK_ORDER	4
#define GROUP		4	/* pages */
#define BLOCK		16	/* pages */
#define BLOCK_BYTES	(BLOCK * PAGE_SIZE)

/*
 * Returns true if the 64 kB block of @addr is neither the first nor the last
 * one of its page table.
 */
static __always_inline bool in_the_middle(unsigned long addr)
{
	/*
	 * A page table has 32 blocks. The block's index plus 1 is 1 for the
	 * first and 32 for the last block; only the others have one of bits 1
	 * to 4 set.
	 */
	return (addr + BLOCK_BYTES) & (PMD_SIZE - 2 * BLOCK_BYTES);
}

/*
 * Reads one page table entry without a lock. A stale or torn value does no
 * harm, as no folio is allocated by it alone.
 */
static __always_inline unsigned long entry_bits(const pte_t *pte)
{
	/*
	 * Other tasks map pages, unmap pages and clear accessed bits
	 * concurrently.
	 */
	return data_race(mmp_bits(*pte));
}

/* ANDs the four page table entries of the 16 kB group at @pte. */
static __always_inline unsigned long group_bits(const pte_t *pte)
{
	return entry_bits(pte) & entry_bits(pte + 1) & entry_bits(pte + 2) & entry_bits(pte + 3);
}

/* Returns true if at least one page of the 16 kB group at @pte is present. */
static __always_inline bool group_has_page(const pte_t *pte)
{
	return mmp_bits_present(entry_bits(pte) | entry_bits(pte + 1) | entry_bits(pte + 2) |
				entry_bits(pte + 3));
}

/* ANDs the sixteen page table entries of the 64 kB block at @pte. */
static __always_inline unsigned long block_bits(const pte_t *pte)
{
	return group_bits(pte) & group_bits(pte + GROUP) & group_bits(pte + 2 * GROUP) &
	       group_bits(pte + 3 * GROUP);
}

/*
 * ANDs the first and last page table entry of the block at @pte, and one
 * neighbour of them. Small records at regular distances may touch both ends of
 * a block, but never two neighbouring pages.
 */
static __always_inline unsigned long block_ends(const pte_t *pte)
{
	return entry_bits(pte) & entry_bits(pte + BLOCK - 1) &
	       (entry_bits(pte + 1) | entry_bits(pte + BLOCK - 2));
}

static __always_inline bool say_used(unsigned long bits)
{
	return mmp_bits_present(bits) && mmp_bits_young(bits);
}

static __always_inline bool say_old(unsigned long bits)
{
	return mmp_bits_present(bits) && !mmp_bits_young(bits);
}

/*
 * Returns true if all 16 pages of the block at @pte are present and used.
 * Sequential access leaves such blocks behind.
 */
static __always_inline bool block_is_used(const pte_t *pte)
{
	return mmp_bits_used(block_bits(pte));
}

/*
 * Returns true if the page with index @page is neither the first nor the last
 * one of a folio, which has at least four pages. The module clears the accessed
 * bit only of the first and last page of a new folio. So an inner page with a
 * clear bit was aged by other code, such as reclaim, DAMON or clear_refs, and
 * clear bits around it say nothing about use. Nor does a clear bit in a folded
 * block, as the module clears none there.
 */
static __always_inline bool is_inner(unsigned int page)
{
	return (page + 1) & (GROUP / 2);
}

/*
 * Counts of pages in a range: present, used (accessed bit set), and aged by
 * other code.
 */
struct count {
	unsigned int there, used, aged;
};

static inline struct count count_pages(const pte_t *pte, unsigned int nr)
{
	struct count count = {};

	for (unsigned int i = 0; i < nr; i++) {
		pte_t entry = mmp_pte(pte, i);
		enum mmp_page page = mmp_page_of(entry);

		count.there += page != MMP_EMPTY;
		count.used += page == MMP_USED;
		count.aged += page == MMP_MAPPED &&
			      (is_inner(i) || mmp_bits_folded(mmp_bits(entry)));
	}
	return count;
}

/*
 * Classifies a block of 64 kB. %MMP_USED: at least @least of its 16 pages are
 * present, including the first and the last, and all present pages were used.
 * %MMP_MAPPED: some present pages were not used. %MMP_EMPTY: the entries do not
 * show whether the block is used.
 */
static inline enum mmp_page block_of(const pte_t *pte, unsigned int least)
{
	struct count count;

	if (!mmp_bits_present(block_ends(pte)))
		return MMP_EMPTY;
	if (say_used(block_bits(pte)))
		return MMP_USED;
	count = count_pages(pte, BLOCK);
	if (count.aged)
		return MMP_EMPTY;
	if (count.used < count.there)
		return MMP_MAPPED;
	return count.used >= least ? MMP_USED : MMP_EMPTY;
}

/*
 * Classifies a group of 16 kB like block_of(). It is used only if all 4 pages
 * were used, because fewer may be a single record of up to 16 kB.
 */
static __always_inline enum mmp_page group_of(const pte_t *pte)
{
	if (say_used(group_bits(pte)))
		return MMP_USED;
	if (say_old(entry_bits(pte + 1)) || say_old(entry_bits(pte + 2)) ||
	    mmp_bits_folded(entry_bits(pte)))
		return MMP_EMPTY;
	return group_has_page(pte) ? MMP_MAPPED : MMP_EMPTY;
}

/*
 * Classifies an area larger than a block by a sample: its first and last page,
 * the pages at one third of @nr from each end, and the block in the middle.
 */
static inline enum mmp_page area_of(const pte_t *pte, unsigned int nr,
				    unsigned int least)
{
	const unsigned int third = nr * 341 >> 10;
	unsigned long bits = entry_bits(pte) & entry_bits(pte + nr - 1);

	bits &= entry_bits(pte + third) & entry_bits(pte + nr - 1 - third);
	if (!say_used(bits))
		return MMP_EMPTY;
	return block_of(pte + nr / 2, least);
}

#endif /* MMPOLICY_ENTRIES_H */
