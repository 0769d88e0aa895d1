// SPDX-License-Identifier: GPL-2.0
/*
 * anon_order/adaptive: the policy requests a large folio for a page fault if
 * memory near the fault has been used in full. judge.c implements this rule
 * ("the rule" below). This file has the knobs, the entry point, and shortcuts
 * that answer most faults without running the rule.
 *
 * The shortcuts must agree with the rule as follows; tests/unit/test_agree.c
 * checks it:
 *
 * - A filter may answer order 0 only if the rule would find neither a fully
 *   used block or group near the fault (an "example") nor wasted memory
 *   (waste.h).
 * - A stream shortcut may answer max_order, or call anon_order_grown(), only if
 *   the rule would find the neighbouring 64 kB block used. The shortcut does
 *   not check that a folio fits around the fault, because the kernel does;
 *   where nothing fits, the rule answers order 0, and the kernel allocates a
 *   smaller folio than the shortcut requested.
 * - Deferring (defer.h) skips all page table reads, and is counted under its
 *   own reason.
 *
 * Filters read a few page table entries of all eight places where the rule
 * looks, in three steps from few entries to more. Entries of other VMAs in the
 * same page tables may pass a filter; the rule ignores them afterwards.
 *
 * Each stage is noinline, so a fault that an earlier stage answers does not
 * save the registers that a later stage needs.
 */
#include <linux/bitops.h>
#include <linux/mm.h>

#include "anon_order.h"
#include "copy.h"
#include "judge.h"
#include "../mmpolicy.h"

static struct mmp_knob knobs[] = {
	[MAX_ORDER] =
		MMP_KNOB(max_order, MMP_MIN_ORDER, MMP_MAX_ORDER, 4, MMP_ORDER,
			 "the largest order"),
	[MIN_USED_PAGES] =
		MMP_KNOB(min_used_pages, 8, 16, 14, "pages",
			 "used pages that a block of 16 needs to count as fully used"),
	[PROBE_BLOCKS] =
		MMP_KNOB(probe_blocks, 0, 1024, 32, "blocks of PMD size",
			 "one in so many blocks gets smaller folios, which show use; 0: none"),
	[MIN_FOLIOS] =
		MMP_KNOB(min_folios, 1, 1024, 32, "folios",
			 "above 64 kB, process memory must be so many folios; for 2 MB, a quarter"),
};

/*
 * ---- Filters. A filter reads a few page table entries, selected by a
 * callback, of each 64 kB block and 16 kB group that the rule would examine. If
 * no entry shows use, the fault gets order 0 without the rule.
 */

typedef unsigned long anon_order_look(const pte_t *pte, unsigned int nr);

static __always_inline unsigned long last_page(const pte_t *pte, unsigned int nr)
{
	return entry_bits(pte + nr - 1);
}

static __always_inline unsigned long both_ends(const pte_t *pte, unsigned int nr)
{
	return entry_bits(pte) & entry_bits(pte + nr - 1);
}

/*
 * ANDs a sample of the @nr page table entries at @pte. In a block of 16 pages,
 * the sample is both ends and a neighbour of one of them; in a group of 4
 * pages, all four. So a bit stays set only if it is set in all sampled pages.
 */
static __always_inline unsigned long samples(const pte_t *pte, unsigned int nr)
{
	return nr == BLOCK ? block_ends(pte) : group_bits(pte);
}

/*
 * Returns true if at least one of the eight places near the fault (four blocks
 * of 64 kB and four groups of 16 kB) may have been used in full. The fault lies
 * in the middle of the page table @table. @look reads some entries of one
 * place. Only the low bits of @index are used; they select the entry of the
 * fault in the table.
 */
static __always_inline bool any_example(const pte_t *table, unsigned long index,
					anon_order_look *look)
{
	const pte_t *const group = table + (index & (PTRS_PER_PTE - GROUP));
	const pte_t *const block = table + (index & (PTRS_PER_PTE - BLOCK));
	unsigned long bits = 0;
	unsigned int i;

#pragma GCC unroll 4
	for (i = 0; i < PLACES; i++) {
		const long pages = block_places[i] * BLOCK;

		/*
		 * A neighbouring block is always in the page table of the
		 * fault; places farther away wrap around to the other end of
		 * the table.
		 */
		bits |= look(pages == BLOCK || pages == -BLOCK ? block + pages :
			     table + ((index + pages) & (PTRS_PER_PTE - BLOCK)), BLOCK);
		bits |= look(group + group_places[i] * GROUP, GROUP);
	}
	return mmp_bits_present(bits);
}

/*
 * ORs what @look returns for the places near a fault in @block, the first or
 * the last block of a page table. Without @beyond, reads only places in this
 * table; with @beyond, only places in the neighbouring table. The fault may be
 * in any group of the block, so this reads the places of all four groups.
 */
static __always_inline unsigned long edge_bits(const pte_t *table, long block, bool beyond,
					       anon_order_look *look)
{
	unsigned long bits = 0;
	unsigned int i, j;

#pragma GCC unroll 4
	for (i = 0; i < PLACES; i++) {
		const long page = (block + block_places[i]) * BLOCK;

		if (beyond == !!(page & PTRS_PER_PTE))
			bits |= look(table + (page & (PTRS_PER_PTE - 1)), BLOCK);
#pragma GCC unroll 4
		for (j = 0; j < BLOCK / GROUP; j++) {
			const long group = block * BLOCK + ((long)j + group_places[i]) * GROUP;

			if (beyond == !!(group & PTRS_PER_PTE))
				bits |= look(table + (group & (PTRS_PER_PTE - 1)), GROUP);
		}
	}
	return bits;
}

static __always_inline bool any_example_of_edge(const pte_t *table, bool first, bool beyond,
						anon_order_look *look)
{
	return mmp_bits_present(first ?
				edge_bits(table, 0, beyond, look) :
				edge_bits(table, PTRS_PER_PTE / BLOCK - 1, beyond, look));
}

/*
 * Returns true if memory near a fault in the first or last block of its page
 * table may have been used in full. Reads this page table, and the neighbouring
 * one unless it maps no part of the VMA. Also returns true if the neighbouring
 * PMD is not a page table but maps something, such as a huge page.
 */
static __always_inline bool any_example_at_edge(const struct vm_fault *vmf,
						const pte_t *table, anon_order_look *look)
{
	const bool first = pte_index(vmf->address) < BLOCK;
	const unsigned long next = first ? (vmf->address & PMD_MASK) - 1 :
					   (vmf->address | ~PMD_MASK) + 1;
	unsigned long bits;

	if (any_example_of_edge(table, first, false, look))
		return true;
	if (next < vmf->vma->vm_start || next >= vmf->vma->vm_end ||
	    (next ^ vmf->address) & PUD_MASK)
		return false;
	bits = mmp_table_bits(pmdp_get_lockless(vmf->pmd + (first ? -1 : 1)));
	if (!mmp_bits_table(bits))
		return bits;
	return any_example_of_edge(mmp_table_at(bits), first, true, look);
}

/*
 * ---- Streams: faults that extend used memory upwards or downwards. @block is
 * the page table entry of the first page in the fault's 64 kB block.
 */

/*
 * Returns true for an upward stream: the block before the fault's block is
 * fully used. If max_order allows folios above 64 kB, one used block is not
 * enough to choose the order, so this returns false, and the rule decides.
 */
static __always_inline bool streams_up(const struct vm_fault *vmf, const pte_t *block,
				       const u32 *knob)
{
	return block_is_used(block - BLOCK) &&
	       vmf->address - vmf->vma->vm_start >= 2 * BLOCK_BYTES &&
	       knob[MAX_ORDER] <= BLOCK_ORDER;
}

/*
 * Tests for a downward stream: the block after the fault's block is fully used.
 * The caller must check that the page before the fault's block is empty,
 * because the rule would count used-in-part memory there against a large folio.
 */
static __always_inline bool streams_down(const struct vm_fault *vmf, const pte_t *block,
					 const u32 *knob)
{
	return mmp_bits_used(entry_bits(block + BLOCK)) && block_is_used(block + BLOCK) &&
	       vmf->vma->vm_end - vmf->address >= 2 * BLOCK_BYTES &&
	       vmf->address - vmf->vma->vm_start >= 2 * BLOCK_BYTES &&
	       knob[MAX_ORDER] <= BLOCK_ORDER;
}

/*
 * Returns true if the page right before the fault's 64 kB block is empty; that
 * page may be in the previous page table.
 */
static __always_inline bool empty_before(const struct vm_fault *vmf)
{
	const struct mmp_place place = mmp_place(vmf);
	enum mmp_page leaf;
	const pte_t *pte;

	pte = mmp_entries(&place, (vmf->address & -BLOCK_BYTES) - PAGE_SIZE, &leaf);
	return pte ? !entry_bits(pte) : leaf == MMP_EMPTY;
}

/*
 * Answers the first fault of a stream after many faults got order 0. A large
 * order ends deferring (order 0 without reading page tables, see defer.h), so
 * this first checks that a folio fits around the fault.
 */
static noinline struct mmp_decision anon_order_stream_begins(const struct vm_fault *vmf,
							     const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);

	if (!anon_order_fits(&place))
		return anon_order_none(vmf, MMP_NO_ROOM);
	return anon_order_run(vmf, knob[MAX_ORDER]);
}

static __always_inline struct mmp_decision anon_order_stream(const struct vm_fault *vmf,
							     const u32 *knob)
{
	if (mmp_many_small())
		return anon_order_stream_begins(vmf, knob);
	return (struct mmp_decision){ MMP_DENSE_NEIGHBOUR, knob[MAX_ORDER] };
}

/*
 * ---- Stages of the answer to a fault in the middle of its page table. Each
 * stage reads more page table entries than the one below it, and answers order
 * 0 if they show no use. Otherwise it calls the stage above it.
 */

static noinline struct mmp_decision anon_order_look_at_samples(const struct vm_fault *vmf,
							       const pte_t *table,
							       const u32 *knob)
{
	if (!any_example(table, pte_index(vmf->address), samples))
		return anon_order_none(vmf, MMP_NO_NEIGHBOUR);
	return anon_order_judge(vmf, knob);
}

static noinline struct mmp_decision anon_order_look_at_ends(const struct vm_fault *vmf,
							    const pte_t *block, const u32 *knob)
{
	const unsigned long index = pte_index(vmf->address);
	const pte_t *const table = block - (index & -BLOCK);

	if (streams_down(vmf, block, knob) && !entry_bits(block - 1))
		return anon_order_stream(vmf, knob);
	if (group_has_page(table + (index & -GROUP)))
		return anon_order_none(vmf, MMP_NO_ROOM);
	if (!any_example(table, index, both_ends))
		return anon_order_none(vmf, MMP_NO_NEIGHBOUR);
	return anon_order_look_at_samples(vmf, table, knob);
}

static noinline struct mmp_decision anon_order_look_at_streams(const struct vm_fault *vmf,
							       const pte_t *block,
							       const u32 *knob)
{
	if (streams_up(vmf, block, knob))
		return anon_order_stream(vmf, knob);
	if (knob[MAX_ORDER] > BLOCK_ORDER && block_is_used(block - BLOCK))
		return anon_order_judge(vmf, knob);
	return anon_order_look_at_ends(vmf, block, knob);
}

/*
 * ---- Stages of the answer to a fault in the first or last block of its page
 * table, or without a page table
 */

/*
 * Returns true if the block before the fault's block is fully used. That block
 * may be in the previous page table. If true, anon_order_grown() can answer
 * without running the rule.
 */
static __always_inline bool used_before(const struct mmp_place *place)
{
	const unsigned long before = (place->addr & -BLOCK_BYTES) - BLOCK_BYTES;
	enum mmp_page leaf;
	const pte_t *pte;

	if (before - place->start >= place->size)
		return false;
	pte = mmp_entries(place, before, &leaf);
	return pte && block_is_used(pte);
}

static noinline struct mmp_decision anon_order_look_at_edge_ends(const struct vm_fault *vmf,
								 const pte_t *table,
								 const u32 *knob)
{
	const struct mmp_place place = mmp_place(vmf);

	if (used_before(&place))
		return anon_order_grown(vmf, &place, knob);
	if (table && !any_example_at_edge(vmf, table, both_ends))
		return anon_order_none(vmf, MMP_NO_NEIGHBOUR);
	return anon_order_judge(vmf, knob);
}

static noinline struct mmp_decision anon_order_edge(const struct vm_fault *vmf,
						    enum mm_policy_site site,
						    const u32 *knob)
{
	const unsigned long bits = mmp_table_bits(pmdp_get_lockless(vmf->pmd));
	const pte_t *table;

	if (site == MM_POLICY_PMD)
		return knob[MAX_ORDER] < MMP_MAX_ORDER ? anon_order_small(MMP_CAP) :
							 anon_order_huge(vmf, knob);
	if (unlikely(!mmp_bits_table(bits)))
		return anon_order_look_at_edge_ends(vmf, NULL, knob);
	table = mmp_table_at(bits);
	if (pte_index(vmf->address) < BLOCK ?
	    streams_down(vmf, table, knob) && empty_before(vmf) :
	    streams_up(vmf, table + PTRS_PER_PTE - BLOCK, knob))
		return anon_order_stream(vmf, knob);
	if (!any_example_at_edge(vmf, table, last_page))
		return anon_order_none(vmf, MMP_NO_NEIGHBOUR);
	return anon_order_look_at_edge_ends(vmf, table, knob);
}

/*
 * Entry point of the policy. In sparsely used memory, most faults get order 0
 * here after reading a single page table entry, the last one, of each of the
 * eight places near the fault.
 */
static struct mmp_decision anon_order_adaptive(const struct vm_fault *vmf,
					       enum mm_policy_site site,
					       const u32 *knob)
{
	const pte_t *table;
	unsigned long bits;

	if (mmp_is_copy(site))
		return anon_order_copy(vmf, knob);
	if (site != MM_POLICY_PMD && mmp_deferred(vmf->vma->vm_mm))
		return anon_order_small(MMP_DEFERRED);
	bits = mmp_table_bits(pmdp_get_lockless(vmf->pmd));
	if (unlikely(!mmp_bits_table(bits) || !in_the_middle(vmf->address)))
		return anon_order_edge(vmf, site, knob);
	table = mmp_table_at(bits);
	if (likely(!any_example(table, vmf->address >> PAGE_SHIFT, last_page)))
		return anon_order_none(vmf, MMP_NO_NEIGHBOUR);
	return anon_order_look_at_streams(vmf, table + (pte_index(vmf->address) & -BLOCK), knob);
}

/**
 * mmp_anon_order_near - test whether memory near a fault may have been used in
 * full
 * @vmf: the fault
 *
 * Runs the first filter of adaptive. Other policies call it to skip faults with
 * nothing used nearby.
 *
 * Return: false if no page table entry near the fault shows use.
 */
bool mmp_anon_order_near(const struct vm_fault *vmf)
{
	const unsigned long bits = mmp_table_bits(pmdp_get_lockless(vmf->pmd));

	return !mmp_bits_table(bits) || !in_the_middle(vmf->address) ||
	       any_example(mmp_table_at(bits), vmf->address >> PAGE_SHIFT, last_page);
}

struct mmp_policy mmp_policy_anon_order_adaptive = {
	.name = "adaptive",
	.point = MM_POLICY_ANON_ORDER,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.witness = true,
	.anon_order = anon_order_adaptive,
};
