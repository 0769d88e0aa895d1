// SPDX-License-Identifier: GPL-2.0
/*
 * adaptive at a write to memory that is shared, as after fork(). Such memory is all present,
 * so the example is memory written since: a piece before or behind the fault with enough
 * writable entries. If it was copied as a whole, its outermost pages must have been used
 * since.
 */
#include <linux/mm.h>

#include "copy.h"
#include "judge.h"

/* Were the @nr pages at @pte written, at least @least of each 16? */
static bool written(const pte_t *pte, unsigned int nr, unsigned int least)
{
	unsigned long outer = entry_bits(pte) & entry_bits(pte + nr - 1);
	unsigned int there = 0;

	if (!say_used(outer) || !mmp_bits_writable(outer))
		return false;
	for (unsigned int i = 0; i < nr; i++)
		there += mmp_bits_writable(entry_bits(pte + i));
	return there >= nr / BLOCK * least;
}

/* Was such a piece of 2^@order pages written before or behind @index, within its page table? */
static bool written_beside(const pte_t *table, unsigned long index, unsigned int order,
			   unsigned int least)
{
	const unsigned int nr = 1U << order;

	index &= -nr;
	return (index >= nr && written(table + index - nr, nr, least)) ||
	       (index + nr < PTRS_PER_PTE && written(table + index + nr, nr, least));
}

static noinline struct mmp_decision anon_order_written(const pte_t *table, unsigned long index,
						       const u32 *knob)
{
	u32 order = min(knob[MAX_ORDER], MMP_MAX_ORDER - 1U);

	if (!written_beside(table, index, BLOCK_ORDER, knob[MIN_USED_PAGES]))
		return anon_order_small(MMP_NO_NEIGHBOUR);
	while (order > BLOCK_ORDER &&
	       !written_beside(table, index, order, knob[MIN_USED_PAGES]))
		order--;
	return (struct mmp_decision){ MMP_DENSE_NEIGHBOUR, order };
}

/* Two entries answer most writes: the page before the block, and the one behind it. */
noinline struct mmp_decision anon_order_copy(const struct vm_fault *vmf, const u32 *knob)
{
	const pmd_t pmd = pmdp_get_lockless(vmf->pmd);
	const unsigned long first = pte_index(vmf->address) & -BLOCK;
	const pte_t *table;
	unsigned long bits;

	if (!mmp_is_table(pmd))
		return anon_order_small(MMP_NO_NEIGHBOUR);
	table = mmp_table(pmd);
	bits = entry_bits(table + (first ? first - 1 : BLOCK));
	bits |= entry_bits(table + (first < PTRS_PER_PTE - BLOCK ? first + BLOCK : first - 1));
	if (likely(!mmp_bits_writable(bits)))
		return anon_order_small(MMP_NO_NEIGHBOUR);
	return anon_order_written(table, first, knob);
}
