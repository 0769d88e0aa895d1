// SPDX-License-Identifier: GPL-2.0
/*
 * Kfuncs about page tables; surroundings.c has the others. A kfunc returns a
 * number or a boolean, never an address or a page table entry, and takes
 * bounded time.
 *
 * The verifier accepts only the fault that the module has passed to the
 * program, see struct mmp_told.
 */
#include <linux/btf.h>
#include <linux/btf_ids.h>

#include "../anon_order/entries.h"
#include "bpf.h"
#include "told.h"

/*
 * Counts the present pages among @pages pages, of which the first lies @first pages after the
 * page of the fault. If @used, counts only pages that were also used. Pages outside the VMA do
 * not count.
 */
static noinline u32 bpf_count(const struct mmp_fault *fault, s64 first, u32 pages, bool used)
{
	const struct mmp_place place = mmp_place(fault->vmf);
	unsigned long addr = (place.addr & PAGE_MASK) + ((unsigned long)first << PAGE_SHIFT);
	enum mmp_page page = MMP_EMPTY;
	const pte_t *pte = NULL;
	u32 count = 0;

	pages = min(pages, MMP_BPF_PAGES);
	for (u32 i = 0; i < pages; i++, addr += PAGE_SIZE) {
		enum mmp_page what;

		if (addr - place.start >= place.size) {
			pte = NULL;
			page = MMP_EMPTY;
			continue;
		}
		if (!pte || !pte_index(addr))
			pte = mmp_entries(&place, addr, &page);
		what = pte ? mmp_page_of(mmp_pte(pte++, 0)) : page;
		count += used ? what == MMP_USED : what != MMP_EMPTY;
	}
	return count;
}

/*
 * Returns true if at least @least pages of the 64 kB block that lies @blocks blocks after that of
 * the fault are used. If 14 of 16 pages are used, at least one of pages 5, 10 and 15 is present, so
 * testing these three rejects most blocks quickly.
 */
static noinline u32 bpf_full(const struct mmp_fault *fault, s64 blocks, u32 least)
{
	const struct mmp_place place = mmp_place(fault->vmf);
	unsigned long addr = (place.addr & -BLOCK_BYTES) + (unsigned long)blocks * BLOCK_BYTES;
	enum mmp_page leaf;
	const pte_t *pte;

	if (addr - place.start >= place.size ||
	    addr + BLOCK_BYTES - 1 - place.start >= place.size)
		return 0;
	pte = mmp_entries(&place, addr, &leaf);
	if (!pte)
		return leaf == MMP_USED;
	if (least > 13 && !mmp_bits_present(entry_bits(pte + 5) | entry_bits(pte + 10) |
					    entry_bits(pte + 15)))
		return 0;
	return block_is_used(pte) || count_pages(pte, BLOCK).used >= least;
}

/*
 * Traces a kfunc call. Not inlined, so that only a traced kfunc saves the
 * registers for it.
 */
static noinline u32 bpf_show(const struct mmp_fault *fault, const char *question, s64 first,
			     u32 second, u32 answer)
{
	trace_mmpolicy_bpf_question(&fault->told, question, first, second, answer);
	return answer;
}

__bpf_kfunc_start_defs();

/* Counts used pages among @pages pages, of which the first is @first pages after the fault. */
__bpf_kfunc u32 mmp_bpf_used(const struct mmp_fault *fault, s64 first, u32 pages)
{
	if (trace_mmpolicy_bpf_question_enabled())
		return bpf_show(fault, "used", first, pages, bpf_count(fault, first, pages, true));
	return bpf_count(fault, first, pages, true);
}

/* Counts present pages among @pages pages, of which the first is @first pages after the fault. */
__bpf_kfunc u32 mmp_bpf_mapped(const struct mmp_fault *fault, s64 first, u32 pages)
{
	if (trace_mmpolicy_bpf_question_enabled())
		return bpf_show(fault, "mapped", first, pages,
				bpf_count(fault, first, pages, false));
	return bpf_count(fault, first, pages, false);
}

/*
 * Returns true if at least @least pages of a 64 kB block are used. The block is
 * aligned, and lies @blocks blocks after the block of the fault (before it, if
 * negative).
 */
__bpf_kfunc u32 mmp_bpf_full(const struct mmp_fault *fault, s64 blocks, u32 least)
{
	if (trace_mmpolicy_bpf_question_enabled())
		return bpf_show(fault, "full", blocks, least, bpf_full(fault, blocks, least));
	return bpf_full(fault, blocks, least);
}

/*
 * Reports an error of the program: every profile with this policy falls back to
 * stock.
 */
__bpf_kfunc void mmp_bpf_error(const struct mmp_told *told, const char *text__str)
{
	mmp_bpf_fail(told->ops, text__str);
}

__bpf_kfunc_end_defs();

BTF_KFUNCS_START(bpf_questions)
BTF_ID_FLAGS(func, mmp_bpf_used, MMP_TRUSTED_ARGS)
BTF_ID_FLAGS(func, mmp_bpf_mapped, MMP_TRUSTED_ARGS)
BTF_ID_FLAGS(func, mmp_bpf_full, MMP_TRUSTED_ARGS)
BTF_ID_FLAGS(func, mmp_bpf_free, MMP_TRUSTED_ARGS)
BTF_ID_FLAGS(func, mmp_bpf_cgroup_pages, MMP_TRUSTED_ARGS)
BTF_ID_FLAGS(func, mmp_bpf_pressure, MMP_TRUSTED_ARGS)
BTF_ID_FLAGS(func, mmp_bpf_error, MMP_TRUSTED_ARGS)
BTF_KFUNCS_END(bpf_questions)

/*
 * Registers the kfuncs for all struct_ops. Programs of other struct_ops may
 * name them, but only the module hands out the arguments that they take.
 */
static const struct btf_kfunc_id_set bpf_question_set = {
	.owner = THIS_MODULE,
	.set = &bpf_questions,
};

int mmp_bpf_questions_init(void)
{
	return register_btf_kfunc_id_set(BPF_PROG_TYPE_STRUCT_OPS, &bpf_question_set);
}
