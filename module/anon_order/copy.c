// SPDX-License-Identifier: GPL-2.0
/*
 * Answers of adaptive for copy-on-write faults, as after fork(). Pages that two
 * processes share are all present, so presence says nothing about use. A
 * writable entry does: the page was copied since the fork. So adaptive requests
 * a large folio if enough pages of the neighbouring memory, before or after the
 * fault, are writable. The first and last of these pages must have the accessed
 * bit set, too: if one fault has copied them all as one folio, all entries are
 * writable, but the module has cleared these two bits, and only later use sets
 * them.
 */
#include <linux/mm.h>

#include "copy.h"
#include "judge.h"

/*
 * Returns true if the @nr pages at @pte were written since the fork: at least
 * @least of each 16 pages are writable, and the first and last page are
 * writable and accessed. @nr is a multiple of 16.
 */
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

/*
 * Returns true if the aligned 2^@order pages right before or right after those
 * around page @index of the table were written since the fork. Pages outside
 * this page table count as not written.
 */
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

/*
 * Answers a copy-on-write fault. For most faults, this reads only two page
 * table entries: of the page before the fault's 64 kB block, and of the page
 * after it. If neither is writable, the answer is order 0.
 */
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
