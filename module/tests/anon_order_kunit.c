// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of anon_order on real page tables. They check that page table
 * entries of this architecture mean what the policies assume, which the unit
 * tests in user space cannot.
 */
#include <kunit/test.h>
#include <linux/gfp.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/swap.h>
#include <asm/pgalloc.h>

#include "../anon_order/ahead.c"
#include "../anon_order/adaptive.c"
#include "../anon_order/copy.c"
#include "../anon_order/defer.c"
#include "../anon_order/judge.c"
#include "../anon_order/waste.c"

#define AREA	BIT(40)	/* any address at the start of a table of PMDs */
#define BEHIND	8		/* the PMD before the faulting one */
#define HERE	9
#define AHEAD	10

/**
 * struct area - three page tables in the middle of a table of PMDs
 * @pmds: the table of PMDs
 * @tables: the page table below each PMD
 * @page: a page to map
 * @vma: larger than the range of @pmds
 * @mm: the process, of which only the size is set
 */
struct area {
	pmd_t *pmds;
	pte_t *tables[AHEAD + 1];
	struct page *page;
	struct vm_area_struct vma;
	struct mm_struct mm;
};

static void *new_page(struct kunit *test)
{
	/*
	 * KUnit frees the page with the test. An allocation of a power of two bytes is aligned to
	 * its size.
	 */
	void *page = kunit_kzalloc(test, PAGE_SIZE, GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, page);
	KUNIT_ASSERT_TRUE(test, PAGE_ALIGNED(page));
	return page;
}

static int area_init(struct kunit *test)
{
	struct area *area = kunit_kzalloc(test, sizeof(*area), GFP_KERNEL);
	int i;

	KUNIT_ASSERT_NOT_NULL(test, area);
	area->pmds = new_page(test);
	area->page = virt_to_page(new_page(test));
	for (i = BEHIND; i <= AHEAD; i++) {
		area->tables[i] = new_page(test);
		pmd_populate_kernel(&init_mm, &area->pmds[i], area->tables[i]);
	}
	area->vma.vm_start = AREA - PUD_SIZE;
	area->vma.vm_end = AREA + 2 * PUD_SIZE;
	area->vma.vm_mm = &area->mm;
	area->mm.rss_stat[MM_ANONPAGES].count = PTRS_PER_PMD;
	test->priv = area;
	return 0;
}

static struct vm_fault fault_at(struct area *area, unsigned int page)
{
	return (struct vm_fault){
		.vma = &area->vma,
		.address = AREA + HERE * PMD_SIZE + page * PAGE_SIZE,
		.pmd = &area->pmds[HERE],
	};
}

static enum mmp_page look_from(const struct vm_fault *vmf, long distance)
{
	const struct mmp_place place = mmp_place(vmf);
	enum mmp_page leaf;
	const pte_t *pte = mmp_entries(&place,
				       vmf->address + distance * PAGE_SIZE,
				       &leaf);

	return pte ? mmp_page_of(mmp_pte(pte, 0)) : leaf;
}

static enum mmp_page look(struct kunit *test, unsigned int page, long distance)
{
	struct vm_fault vmf = fault_at(test->priv, page);

	return look_from(&vmf, distance);
}

static pgprot_t prot(void)
{
	return vm_get_page_prot(VM_READ | VM_WRITE);
}

static pte_t present(struct area *area)
{
	return mk_pte(area->page, prot());
}

static pte_t swapped(void)
{
	return swp_entry_to_pte(swp_entry(1, 0x1234));
}

/*
 * Expects that an entry with the value @pte is seen as @page: in the page table
 * of the fault, in that of lower addresses, and in that of higher ones.
 */
static void expect_pte(struct kunit *test, pte_t pte, enum mmp_page page)
{
	struct area *area = test->priv;

	area->tables[HERE][9] = pte;
	area->tables[BEHIND][PTRS_PER_PTE - 1] = pte;
	area->tables[AHEAD][0] = pte;
	KUNIT_EXPECT_EQ(test, look(test, 8, 1), page);
	KUNIT_EXPECT_EQ(test, look(test, 0, -1), page);
	KUNIT_EXPECT_EQ(test, look(test, PTRS_PER_PTE - 1, 1), page);
}

static void empty_entries(struct kunit *test)
{
	expect_pte(test, __pte(0), MMP_EMPTY);
}

static void present_entries(struct kunit *test)
{
	pte_t pte = present(test->priv);

	expect_pte(test, pte_mkyoung(pte), MMP_USED);
	expect_pte(test, pte_mkdirty(pte_mkyoung(pte)), MMP_USED);
	expect_pte(test, pte_mkold(pte), MMP_MAPPED);
	expect_pte(test, pte_wrprotect(pte_mkold(pte)), MMP_MAPPED);
}

/*
 * NUMA balancing and PROT_NONE take away access, but the page stays mapped, so its accessed bit
 * still tells whether it was used.
 */
static void inaccessible_entries(struct kunit *test)
{
	pte_t pte = pte_modify(present(test->priv), PAGE_NONE);

	expect_pte(test, pte_mkyoung(pte), MMP_USED);
	expect_pte(test, pte_mkold(pte), MMP_MAPPED);
}

static void zero_page_entries(struct kunit *test)
{
	pte_t pte = pte_mkspecial(pfn_pte(mmp_zero_pfn(AREA), prot()));

	expect_pte(test, pte_mkyoung(pte), MMP_USED);
}

static void swap_entries(struct kunit *test)
{
	expect_pte(test, swapped(), MMP_EMPTY);
	expect_pte(test, pte_swp_mksoft_dirty(swapped()), MMP_EMPTY);
	expect_pte(test, make_pte_marker(PTE_MARKER_POISONED), MMP_EMPTY);
}

/*
 * Expects that a fault in the next PMD finds no page table in PMD entry @pmd,
 * and classifies the memory there as @there (for a huge page: used or not).
 */
static void expect_no_table(struct kunit *test, pmd_t pmd, enum mmp_page there)
{
	struct area *area = test->priv;

	KUNIT_EXPECT_FALSE(test, mmp_is_table(pmd));
	area->pmds[BEHIND] = pmd;
	area->pmds[AHEAD] = pmd;
	KUNIT_EXPECT_EQ(test, look(test, 0, -1), there);
	KUNIT_EXPECT_EQ(test, look(test, 0, -PTRS_PER_PTE), there);
	KUNIT_EXPECT_EQ(test, look(test, PTRS_PER_PTE - 1, 1), there);
}

static pmd_t huge(struct area *area)
{
	return pmd_mkhuge(pfn_pmd(page_to_pfn(area->page), prot()));
}

static void empty_pmds(struct kunit *test)
{
	expect_no_table(test, __pmd(0), MMP_EMPTY);
}

static void huge_pmds(struct kunit *test)
{
	pmd_t pmd = huge(test->priv);

	expect_no_table(test, pmd_mkyoung(pmd), MMP_USED);
	expect_no_table(test, pmd_mkold(pmd), MMP_MAPPED);
	expect_no_table(test, pmd_mkyoung(pmd_modify(pmd, PAGE_NONE)), MMP_USED);
	expect_no_table(test, pmd_mkold(pmd_modify(pmd, PAGE_NONE)), MMP_MAPPED);
}

/*
 * While the kernel splits a huge page, its PMD is marked invalid. It must still count as a huge
 * page, not as a page table.
 */
static void invalid_pmds(struct kunit *test)
{
	pmd_t pmd = huge(test->priv);

	expect_no_table(test, pmd_mkinvalid(pmd_mkyoung(pmd)), MMP_USED);
}

static void swapped_pmds(struct kunit *test)
{
	struct area *area = test->priv;
	unsigned long pfn = page_to_pfn(area->page);

	if (!thp_migration_supported())
		kunit_skip(test, "needs migration of huge pages");
	expect_no_table(test, swp_entry_to_pmd(make_readable_migration_entry(pfn)),
			MMP_EMPTY);
}

static void a_table_is_followed(struct kunit *test)
{
	struct area *area = test->priv;

	KUNIT_EXPECT_TRUE(test, mmp_is_table(area->pmds[HERE]));
	KUNIT_EXPECT_PTR_EQ(test, mmp_table(area->pmds[HERE]),
			    (const pte_t *)area->tables[HERE]);
}

/* A fault in an empty PMD sees its neighbours, but has no page table of its own. */
static void no_table_here(struct kunit *test)
{
	struct area *area = test->priv;

	area->tables[BEHIND][PTRS_PER_PTE - 1] = pte_mkyoung(present(area));
	area->pmds[HERE] = __pmd(0);
	KUNIT_EXPECT_EQ(test, look(test, 0, -1), MMP_USED);
	KUNIT_EXPECT_EQ(test, look(test, 1, -1), MMP_EMPTY);
}

/*
 * A fault must not read beyond its table of PMDs, as the memory next to it has
 * other contents.
 */
static void the_page_of_pmds_is_not_left(struct kunit *test)
{
	struct area *area = test->priv;
	const struct vm_fault first = {
		.vma = &area->vma,
		.address = AREA,
		.pmd = area->pmds,
	};
	const struct vm_fault last = {
		.vma = &area->vma,
		.address = AREA + PUD_SIZE - PAGE_SIZE,
		.pmd = area->pmds + PTRS_PER_PMD - 1,
	};

	KUNIT_EXPECT_EQ(test, look_from(&first, -1), MMP_EMPTY);
	KUNIT_EXPECT_EQ(test, look_from(&last, 1), MMP_EMPTY);
}

static struct mmp_decision ask(struct kunit *test, unsigned int page)
{
	static const u32 values[] = {
		[MAX_ORDER] = MMP_MAX_ORDER,
		[MIN_USED_PAGES] = BLOCK,
		[MIN_FOLIOS] = 1,
	};
	struct vm_fault vmf = fault_at(test->priv, page);

	return mmp_policy_anon_order_adaptive.anon_order(&vmf, MM_POLICY_PTE, values);
}

static void expect_order(struct kunit *test, unsigned int page,
			 unsigned int order, enum mmp_reason reason)
{
	struct mmp_decision d = ask(test, page);

	KUNIT_EXPECT_EQ(test, d.order, order);
	KUNIT_EXPECT_EQ(test, d.reason, reason);
}

/*
 * Tests complete decisions of the policy for faults with used memory nearby, in this page table and
 * across its edges.
 */
static void adaptive_on_real_entries(struct kunit *test)
{
	struct area *area = test->priv;
	int i;

	for (i = 0; i < 16; i++)
		area->tables[HERE][i] = pte_mkyoung(present(area));
	expect_order(test, 16, 4, MMP_DENSE_NEIGHBOUR);
	expect_order(test, 64, 4, MMP_DENSE_NEIGHBOUR);
	area->tables[HERE][15] = pte_mkold(present(area));
	expect_order(test, 64, 0, MMP_SPARSE_NEIGHBOUR);
	area->tables[HERE][15] = __pte(0);
	expect_order(test, 64, 0, MMP_NO_NEIGHBOUR);
	area->tables[HERE][0] = __pte(0);
	expect_order(test, 2, 0, MMP_NO_ROOM);
	for (i = 0; i < 16; i++)
		area->tables[HERE][i] = __pte(0);
	area->pmds[BEHIND] = pmd_mkyoung(huge(area));
	expect_order(test, 0, MMP_MAX_ORDER - 1, MMP_DENSE_NEIGHBOUR);
	/*
	 * A huge page with a clear accessed bit may have been aged, so it counts neither as used
	 * nor as wasted.
	 */
	area->pmds[AHEAD] = pmd_mkold(huge(area));
	expect_order(test, PTRS_PER_PTE - 1, 0, MMP_NO_NEIGHBOUR);
}

static struct kunit_case cases[] = {
	KUNIT_CASE(empty_entries),
	KUNIT_CASE(present_entries),
	KUNIT_CASE(inaccessible_entries),
	KUNIT_CASE(zero_page_entries),
	KUNIT_CASE(swap_entries),
	KUNIT_CASE(empty_pmds),
	KUNIT_CASE(huge_pmds),
	KUNIT_CASE(invalid_pmds),
	KUNIT_CASE(swapped_pmds),
	KUNIT_CASE(a_table_is_followed),
	KUNIT_CASE(no_table_here),
	KUNIT_CASE(the_page_of_pmds_is_not_left),
	KUNIT_CASE(adaptive_on_real_entries),
	{}
};

static struct kunit_suite suite = {
	.name = "mmpolicy_anon_order",
	.init = area_init,
	.test_cases = cases,
};

kunit_test_suite(suite);

MODULE_DESCRIPTION("KUnit tests of mmpolicy");
MODULE_LICENSE("GPL");
