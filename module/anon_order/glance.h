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
	/* Of blocks counted from 1, those that are neither 1 nor all of them. */
	return (addr + BLOCK_BYTES) & (PMD_SIZE - 2 * BLOCK_BYTES);
}

/* The bits of an entry, at a glance: an old value, or half of one, will do. */
static __always_inline unsigned long glance(const pte_t *pte)
{
	/* Others map, age and unmap pages meanwhile. */
	return data_race(mmp_bits(*pte));
}

/* The bits that the entries of a group have in common. */
static __always_inline unsigned long whole(const pte_t *pte)
{
	return glance(pte) & glance(pte + 1) & glance(pte + 2) & glance(pte + 3);
}

static __always_inline bool any_there(const pte_t *pte)
{
	return mmp_bits_present(glance(pte) | glance(pte + 1) | glance(pte + 2) |
				glance(pte + 3));
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
	return mmp_bits_present(bits) && mmp_bits_young(bits);
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

	if (!mmp_bits_present(ends(pte)))
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

/* Of pages in a row the last one; at a second glance, what it shares with the first. */
static __always_inline unsigned long row(const pte_t *pte, unsigned int nr, bool again)
{
	return again ? glance(pte) & glance(pte + nr - 1) : glance(pte + nr - 1);
}

/* A block at a distance, in a table that begins anew where it ends. */
static __always_inline unsigned long far_block(unsigned long index, long distance)
{
	return (index + distance * BLOCK) & (PTRS_PER_PTE - BLOCK);
}

/*
 * May there be an example? Here and below, entries of others only make us look
 * closer. @index may have more bits than those of the table.
 */
static __always_inline bool anon_order_any(const pte_t *table, unsigned long index,
					   bool again)
{
	const unsigned long group = index & (PTRS_PER_PTE - GROUP);
	const unsigned long block = index & (PTRS_PER_PTE - BLOCK);

	return mmp_bits_present(row(table + block - BLOCK, BLOCK, again) |
				row(table + block + BLOCK, BLOCK, again) |
				row(table + far_block(index, -4), BLOCK, again) |
				row(table + far_block(index, 4), BLOCK, again) |
				row(table + group - GROUP, GROUP, again) |
				row(table + group + GROUP, GROUP, again) |
				row(table + group - 2 * GROUP, GROUP, again) |
				row(table + group - 4 * GROUP, GROUP, again));
}

/* The same of the groups of a block: of any. */
static __always_inline unsigned long any_group(const pte_t *block, bool again)
{
	return row(block, GROUP, again) | row(block + GROUP, GROUP, again) |
	       row(block + 2 * GROUP, GROUP, again) | row(block + 3 * GROUP, GROUP, again);
}

/* As anon_order_any(), in the table of a fault in its first or in its last block. */
static __always_inline bool anon_order_any_here(const pte_t *table, bool first, bool again)
{
	const pte_t *const last = table + PTRS_PER_PTE;

	if (first)
		return mmp_bits_present(any_group(table, again) |
					row(table + BLOCK, GROUP, again) |
					row(table + BLOCK, BLOCK, again) |
					row(table + 4 * BLOCK, BLOCK, again));
	return mmp_bits_present(any_group(last - BLOCK, again) |
				any_group(last - 2 * BLOCK, again) |
				row(last - 2 * BLOCK, BLOCK, again) |
				row(last - 5 * BLOCK, BLOCK, again));
}

/* In the table before the first block, or in that behind the last one. */
static __always_inline bool anon_order_any_there(const pte_t *table, bool first, bool again)
{
	const pte_t *const last = table + PTRS_PER_PTE;

	if (first)
		return mmp_bits_present(any_group(last - BLOCK, again) |
					row(last - BLOCK, BLOCK, again) |
					row(last - 4 * BLOCK, BLOCK, again));
	return mmp_bits_present(row(table, GROUP, again) | row(table, BLOCK, again) |
				row(table + 3 * BLOCK, BLOCK, again));
}

/*
 * In both. What is no table may be anything. A table is only there to be looked into
 * if it maps a part of the VMA.
 */
static __always_inline bool anon_order_any_edge(const struct vm_fault *vmf,
						const pte_t *table, bool again)
{
	const bool first = pte_index(vmf->address) < BLOCK;
	const unsigned long next = first ? (vmf->address & PMD_MASK) - 1 :
					   (vmf->address | ~PMD_MASK) + 1;
	unsigned long bits;

	if (anon_order_any_here(table, first, again))
		return true;
	if (next < vmf->vma->vm_start || next >= vmf->vma->vm_end ||
	    (next ^ vmf->address) & PUD_MASK)
		return false;
	bits = mmp_table_bits(pmdp_get_lockless(vmf->pmd + (first ? -1 : 1)));
	if (!mmp_bits_table(bits))
		return bits;
	return anon_order_any_there(mmp_table_at(bits), first, again);
}

/* Is a block full and used, as in the steady state of streams? */
static __always_inline bool is_plain(const pte_t *block)
{
	return mmp_bits_used(common(block));
}

/*
 * Writes to memory that is shared, as after fork(). All of it is there, so entries
 * that are writable are the examples: a block has been written in full, or it was
 * copied as a whole and its outermost pages have been used since.
 */
static inline bool written(const pte_t *pte, unsigned int nr, unsigned int least)
{
	unsigned long outer = glance(pte) & glance(pte + nr - 1);
	unsigned int there = 0;

	if (!say_used(outer) || !mmp_bits_writable(outer))
		return false;
	for (unsigned int i = 0; i < nr; i++)
		there += mmp_bits_writable(glance(pte + i));
	return there >= nr / BLOCK * least;
}

/* Is there such an example before or after the fault, in the same page table? */
static inline bool written_beside(const pte_t *table, unsigned long index,
				  unsigned int order, unsigned int least)
{
	const unsigned int nr = 1U << order;

	index &= -nr;
	return (index >= nr && written(table + index - nr, nr, least)) ||
	       (index + nr < PTRS_PER_PTE && written(table + index + nr, nr, least));
}

#endif /* MMPOLICY_GLANCE_H */
