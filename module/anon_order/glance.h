/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What adaptive makes of entries of page tables. Of many entries the bits are
 * put together first and asked then, so one look costs an instruction or two.
 *
 * Groups are of 16 kB, blocks of 64 kB.
 */
#ifndef MMPOLICY_GLANCE_H
#define MMPOLICY_GLANCE_H

#include "anon_order.h"

#define GROUP_ORDER	2
#define BLOCK_ORDER	4
#define GROUP		4	/* pages */
#define BLOCK		16
#define BLOCK_BYTES	(BLOCK * PAGE_SIZE)

/* Is the block of a fault neither the first nor the last of its page table? */
static __always_inline bool in_the_middle(unsigned long addr)
{
	return pte_index(addr) - BLOCK < PTRS_PER_PTE - 2 * BLOCK;
}

/* The bits of an entry, at a glance: an old value, or half of one, will do. */
static __always_inline unsigned long glance(const pte_t *pte)
{
	/* Others map, age and unmap pages meanwhile. */
	return data_race(pte_val(*pte));
}

/* The bits that the entries of a group have in common. */
static __always_inline unsigned long whole(const pte_t *pte)
{
	return glance(pte) & glance(pte + 1) & glance(pte + 2) & glance(pte + 3);
}

static __always_inline bool any_there(const pte_t *pte)
{
	return pte_present(__pte(glance(pte) | glance(pte + 1) | glance(pte + 2) |
				 glance(pte + 3)));
}

/* The same of a block. */
static __always_inline unsigned long common(const pte_t *pte)
{
	return whole(pte) & whole(pte + GROUP) & whole(pte + 2 * GROUP) &
	       whole(pte + 3 * GROUP);
}

/*
 * As common(), of both ends of a block, and of a page beside one of them: no
 * regular distance between small records hits two neighbours.
 */
static __always_inline unsigned long ends(const pte_t *pte)
{
	return glance(pte) & glance(pte + BLOCK - 1) &
	       (glance(pte + 1) | glance(pte + BLOCK - 2));
}

static __always_inline bool say_used(unsigned long bits)
{
	return pte_present(__pte(bits)) && pte_young(__pte(bits));
}

/* Pages in a row: how many there are, and how many of them were used. */
struct count {
	unsigned int there, used;
};

static inline struct count count_pages(const pte_t *pte, unsigned int nr)
{
	struct count count = {};

	for (; nr--; pte++) {
		enum mmp_page page = mmp_page_of(mmp_pte(pte, 0));

		count.there += page != MMP_EMPTY;
		count.used += page == MMP_USED;
	}
	return count;
}

/*
 * Examples: rows of pages that were used in full (%MMP_USED), that were
 * allocated and not used (%MMP_MAPPED), or that tell nothing (%MMP_EMPTY).
 */
static inline enum mmp_page block_of(const pte_t *pte, unsigned int least)
{
	struct count count;

	if (!pte_present(__pte(ends(pte))))
		return MMP_EMPTY;
	if (say_used(common(pte)))
		return MMP_USED;
	count = count_pages(pte, BLOCK);
	if (count.used < count.there)
		return MMP_MAPPED;
	return count.used >= least ? MMP_USED : MMP_EMPTY;
}

/* Of so few pages each one counts, as records may be as small. */
static __always_inline enum mmp_page group_of(const pte_t *pte)
{
	if (say_used(whole(pte)))
		return MMP_USED;
	return any_there(pte) ? MMP_MAPPED : MMP_EMPTY;
}

/* Of many pages, a block in the middle and some that are at odd distances. */
static inline enum mmp_page area_of(const pte_t *pte, unsigned int nr,
				    unsigned int least)
{
	const unsigned int third = nr * 341 >> 10;
	unsigned long bits = glance(pte) & glance(pte + nr - 1);

	bits &= glance(pte + third) & glance(pte + nr - 1 - third);
	if (!say_used(bits))
		return MMP_EMPTY;
	return block_of(pte + nr / 2, least);
}

static __always_inline unsigned long both_ends(const pte_t *pte, unsigned int nr)
{
	return glance(pte) & glance(pte + nr - 1);
}

/* The block farthest before, in a table that begins anew where it ends. */
static __always_inline unsigned long farthest(unsigned long index)
{
	return (index - 4 * BLOCK) & (PTRS_PER_PTE - BLOCK);
}

/*
 * At a first glance: is the last page there of any that may be an example? Here
 * and below, entries of others only make us look closer.
 */
static __always_inline bool anon_order_any(const pte_t *table, unsigned long index)
{
	const pte_t *const group = table + (index & -GROUP) + GROUP - 1;
	const pte_t *const block = table + (index & -BLOCK) + BLOCK - 1;

	return pte_present(__pte(glance(block - BLOCK) | glance(block + BLOCK) |
				 glance(table + farthest(index) + BLOCK - 1) |
				 glance(group - GROUP) | glance(group + GROUP) |
				 glance(group - 2 * GROUP) |
				 glance(group - 4 * GROUP)));
}

/* At a second glance: is the first one there too, of the same? */
static __always_inline bool anon_order_some(const pte_t *table, unsigned long index)
{
	const pte_t *const group = table + (index & -GROUP);
	const pte_t *const block = table + (index & -BLOCK);

	return pte_present(__pte(both_ends(block - BLOCK, BLOCK) |
				 both_ends(block + BLOCK, BLOCK) |
				 both_ends(table + farthest(index), BLOCK) |
				 both_ends(group - GROUP, GROUP) |
				 both_ends(group + GROUP, GROUP) |
				 both_ends(group - 2 * GROUP, GROUP) |
				 both_ends(group - 4 * GROUP, GROUP)));
}

/* The same of groups in a row: of any. */
static __always_inline unsigned long any_group(const pte_t *pte, unsigned int groups)
{
	unsigned long bits = 0;

	for (; groups--; pte += GROUP)
		bits |= both_ends(pte, GROUP);
	return bits;
}

/* As anon_order_some(), for faults in the first block of a page table. */
static inline bool anon_order_some_first(const struct mmp_place *place)
{
	const pte_t *pte = place->here - pte_index(place->addr);
	enum mmp_page leaf;

	if (pte_present(__pte(any_group(pte, 5) | both_ends(pte + BLOCK, BLOCK))))
		return true;
	if ((place->addr & PMD_MASK) <= place->start)
		return false;
	pte = mmp_entries(place, (place->addr & PMD_MASK) - 4 * BLOCK_BYTES, &leaf);
	if (!pte)
		return leaf != MMP_EMPTY;
	return pte_present(__pte(any_group(pte + 3 * BLOCK, 4) | both_ends(pte, BLOCK) |
				 both_ends(pte + 3 * BLOCK, BLOCK)));
}

/* In the last one. */
static inline bool anon_order_some_last(const struct mmp_place *place)
{
	const pte_t *pte = place->here - pte_index(place->addr) + PTRS_PER_PTE;
	enum mmp_page leaf;

	if (pte_present(__pte(any_group(pte - 2 * BLOCK, 8) | both_ends(pte - 2 * BLOCK, BLOCK) |
			      both_ends(pte - 5 * BLOCK, BLOCK))))
		return true;
	if ((place->addr | ~PMD_MASK) - place->start >= place->size - 1)
		return false;
	pte = mmp_entries(place, (place->addr | ~PMD_MASK) + 1, &leaf);
	return pte ? pte_present(__pte(both_ends(pte, GROUP) | both_ends(pte, BLOCK))) :
		     leaf != MMP_EMPTY;
}

/* Is a block full and used, as in the steady state of streams? */
static __always_inline bool is_plain(const pte_t *block)
{
	return mmp_bits_used(glance(block + BLOCK - 1)) && mmp_bits_used(common(block));
}

#endif /* MMPOLICY_GLANCE_H */
