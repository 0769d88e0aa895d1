/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What page table entries say of the memory that they map. adaptive reads many entries for
 * one answer, so the bits of several entries are first combined, and then asked.
 *
 * A group is 16 kB of memory, aligned; a block is 64 kB.
 */
#ifndef MMPOLICY_ENTRIES_H
#define MMPOLICY_ENTRIES_H

#include "anon_order.h"

#define GROUP_ORDER	2
#define BLOCK_ORDER	4
#define GROUP		4	/* pages */
#define BLOCK		16	/* pages */
#define BLOCK_BYTES	(BLOCK * PAGE_SIZE)

/* Is the block of @addr neither the first nor the last of its page table? */
static __always_inline bool in_the_middle(unsigned long addr)
{
	/* Block index + 1 is 1 for the first and 32 for the last: these have no bit of 1 to 4. */
	return (addr + BLOCK_BYTES) & (PMD_SIZE - 2 * BLOCK_BYTES);
}

/* The bits of one entry. An old value, or half of one, will do: no folio depends on it. */
static __always_inline unsigned long entry_bits(const pte_t *pte)
{
	/* Other tasks map, age and unmap pages concurrently. */
	return data_race(mmp_bits(*pte));
}

/* The bits that the four entries of the group at @pte share. */
static __always_inline unsigned long group_bits(const pte_t *pte)
{
	return entry_bits(pte) & entry_bits(pte + 1) & entry_bits(pte + 2) & entry_bits(pte + 3);
}

/* Is a page of the group at @pte there? */
static __always_inline bool group_has_page(const pte_t *pte)
{
	return mmp_bits_present(entry_bits(pte) | entry_bits(pte + 1) | entry_bits(pte + 2) |
				entry_bits(pte + 3));
}

/* The bits that the sixteen entries of the block at @pte share. */
static __always_inline unsigned long block_bits(const pte_t *pte)
{
	return group_bits(pte) & group_bits(pte + GROUP) & group_bits(pte + 2 * GROUP) &
	       group_bits(pte + 3 * GROUP);
}

/*
 * The bits that both ends of the block at @pte share with a neighbour of one of them. Small
 * records at a regular distance may touch both ends, but never two neighbours.
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

/* Are all pages of the block at @pte there and used? A stream leaves such blocks. */
static __always_inline bool block_is_used(const pte_t *pte)
{
	return mmp_bits_used(block_bits(pte));
}

/*
 * Only the outermost pages of folios are mapped as not accessed, and a folio is at least a
 * group. So if a page inside of a group is old, other code has aged it: reclaim, DAMON,
 * clear_refs. Then the old pages around it tell nothing.
 */
static __always_inline bool is_inner(unsigned int page)
{
	return (page + 1) & (GROUP / 2);
}

/* Pages in a row: the number present, used, and aged by other code. */
struct count {
	unsigned int there, used, aged;
};

static inline struct count count_pages(const pte_t *pte, unsigned int nr)
{
	struct count count = {};

	for (unsigned int i = 0; i < nr; i++) {
		enum mmp_page page = mmp_page_of(mmp_pte(pte, i));

		count.there += page != MMP_EMPTY;
		count.used += page == MMP_USED;
		count.aged += page == MMP_MAPPED && is_inner(i);
	}
	return count;
}

/*
 * A possible example is a row of pages. It was used in full (%MMP_USED), or was allocated and
 * not all used (%MMP_MAPPED), or tells nothing (%MMP_EMPTY).
 *
 * A block is an example if @least of its 16 pages are present, with both ends, and all
 * present ones were used.
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

/* A group is an example only if all 4 pages were used: one record may be 16 kB. */
static __always_inline enum mmp_page group_of(const pte_t *pte)
{
	if (say_used(group_bits(pte)))
		return MMP_USED;
	if (say_old(entry_bits(pte + 1)) || say_old(entry_bits(pte + 2)))
		return MMP_EMPTY;
	return group_has_page(pte) ? MMP_MAPPED : MMP_EMPTY;
}

/*
 * More than a block is judged by a sample: the first and the last page, the two at a third of
 * @nr from each end, and the block in the middle.
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
