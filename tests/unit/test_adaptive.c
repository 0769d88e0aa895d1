// SPDX-License-Identifier: GPL-2.0
/*
 * anon_order/adaptive: single decisions. Each test row is a picture of the
 * pages near a fault.
 */
#include <string.h>

#include "check.h"
#include "walks.h"

enum { MAX_ORDER, MIN_USED_PAGES, PROBE_BLOCKS, MIN_FOLIOS };

#define KNOBS		4
#define DEFAULTS	((const u32[KNOBS]){ 4, 14, 16, 32 })

#define FULL_4		"uuuu"
#define FULL_16		FULL_4 FULL_4 FULL_4 FULL_4
#define UNUSED_16	FULL_4 FULL_4 FULL_4 "uuum"
#define AGED_16		"mmmmmmmmmmmmmmmm"
#define NONE_4		"...."
#define NONE_16		NONE_4 NONE_4 NONE_4 NONE_4
#define NONE_48		NONE_16 NONE_16 NONE_16
#define HERE_4		"*..."
#define HERE_16		"*..............."

/*
 * A row: the pages near a fault, with one letter per page (u used, m mapped and not used, s in
 * swap, . empty, * the faulting page), and the expected answer.
 */
struct row {
	const char *pages;
	unsigned int order;
	enum mmp_reason reason;
};

/*
 * Makes a VMA of the pages of a picture, from page @start on. Returns the
 * faulting page.
 */
static unsigned long draw(struct sim *sim, const char *pages, unsigned long start)
{
	unsigned long fault = start, i;

	sim_vma(sim, start, start + strlen(pages));
	for (i = start; *pages; pages++, i++) {
		pte_t *pte = sim_pte(sim, i);

		if (*pages == 'u')
			*pte = __pte(_PAGE_PRESENT | _PAGE_USER | _PAGE_ACCESSED);
		else if (*pages == 'm')
			*pte = __pte(_PAGE_PRESENT | _PAGE_USER);
		else if (*pages == 's')
			*pte = __pte(i << PAGE_SHIFT);
		else if (*pages == '*')
			fault = i;
	}
	return fault;
}

static struct mmp_decision drawn(const char *pages, unsigned long start, const u32 *knob,
				 unsigned long flags, bool swapin)
{
	struct mmp_decision d;
	unsigned long fault;
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_adaptive);
	memcpy(sim.knob, knob, KNOBS * sizeof(*knob));
	sim.vma.vm_flags = flags;
	fault = draw(&sim, pages, start);
	if (swapin)
		*sim_pte(&sim, fault) = __pte(fault << PAGE_SHIFT);
	d = sim_ask(&sim, fault);
	sim_free(&sim);
	return d;
}

/*
 * Checks each row in up to three positions (@where): in the middle of a page
 * table, with the fault in its last block, and with the fault in the first
 * block of the next one.
 */
static void check_rows(const struct row *rows, unsigned int nr, const u32 *knob,
		       unsigned int where, unsigned long flags, bool swapin)
{
	const unsigned long step = BIT(max(knob[MAX_ORDER], 4U));
	unsigned int i;

	for (i = 0; i < nr * where; i++) {
		const struct row *row = &rows[i / where];
		unsigned long before = (strchr(row->pages, '*') - row->pages) & -step;
		const unsigned long starts[] = {
			step * 2, 2 * SIM_TABLE - step - before, 2 * SIM_TABLE - before,
		};
		struct mmp_decision d;

		d = drawn(row->pages, starts[i % where], knob, flags, swapin);
		at("\"%s\" from page %lu", row->pages, starts[i % where]);
		EXPECT(d.order, ==, row->order);
		EXPECT(d.reason, ==, row->reason);
	}
}

#define EVERYWHERE	3

#define CHECK_AT(where, rows, knob)	check_rows(rows, ARRAY_SIZE(rows), knob, where, 0, false)
#define CHECK_MIDDLE(rows, knob)	CHECK_AT(1, rows, knob)
#define CHECK(rows, knob)		CHECK_AT(EVERYWHERE, rows, knob)
#define CHECK_SWAPIN(rows)		check_rows(rows, ARRAY_SIZE(rows), DEFAULTS, 1, 0, true)
#define CHECK_FLAGS(rows, flags)	check_rows(rows, ARRAY_SIZE(rows), DEFAULTS, 1, flags, false)

TEST(a_full_block_nearby)
{
	static const struct row rows[] = {
		{ FULL_16 HERE_16, 4, MMP_DENSE_NEIGHBOUR },
		{ HERE_16 FULL_16, 4, MMP_DENSE_NEIGHBOUR },
		{ FULL_16 "........*.......", 4, MMP_DENSE_NEIGHBOUR },
		{ FULL_16 NONE_16 HERE_16, 0, MMP_NO_NEIGHBOUR },
		{ HERE_16 NONE_16 FULL_16, 0, MMP_NO_NEIGHBOUR },
		{ NONE_16 HERE_16 NONE_16, 0, MMP_NO_NEIGHBOUR },
		/*
		 * The policy requests order 4 even if 64 kB do not fit around the fault; the kernel
		 * then chooses a smaller folio.
		 */
		{ FULL_16 "uuuuuuuu*.......", 4, MMP_DENSE_NEIGHBOUR },
		{ FULL_16 "uu..*..........", 4, MMP_DENSE_NEIGHBOUR },
	};
	static const struct row far[] = {
		{ FULL_16 NONE_48 HERE_16, 4, MMP_DENSE_NEIGHBOUR },
		{ FULL_16 NONE_48 NONE_16 HERE_16, 0, MMP_NO_NEIGHBOUR },
		{ HERE_16 NONE_48 FULL_16, 4, MMP_DENSE_NEIGHBOUR },
		{ HERE_16 NONE_48 NONE_16 FULL_16, 0, MMP_NO_NEIGHBOUR },
	};

	CHECK(rows, DEFAULTS);
	CHECK_MIDDLE(far, DEFAULTS);
}

TEST(how_full_a_block_has_to_be)
{
	static const struct row rows[] = {
		{ "u.uuuuu.uuuuuuuu" HERE_16, 4, MMP_DENSE_NEIGHBOUR },
		{ "u.uuuuu.uuu.uuuu" NONE_48 HERE_16, 0, MMP_NO_NEIGHBOUR },
		{ ".uuuuuuuuuuuuuuu" NONE_48 HERE_16, 0, MMP_NO_NEIGHBOUR },
		{ "uuuuuuuuuuuuuuu." NONE_48 HERE_16, 0, MMP_NO_NEIGHBOUR },
	};
	static const struct row strict[] = {
		{ "u.uuuuuuuuuuuuuu" NONE_48 HERE_16, 0, MMP_NO_NEIGHBOUR },
		{ FULL_16 NONE_48 HERE_16, 4, MMP_DENSE_NEIGHBOUR },
	};
	static const struct row lax[] = {
		{ "u.u.u.u.u.u.u.uu" NONE_48 HERE_16, 4, MMP_DENSE_NEIGHBOUR },
		{ "u.u.u.u.u.u...uu" NONE_48 HERE_16, 4, MMP_DENSE_NEIGHBOUR },
		{ "u.u.u.u.u.....uu" NONE_48 HERE_16, 0, MMP_NO_NEIGHBOUR },
		{ "u.u.u.u.u.u.uu.u" NONE_48 HERE_16, 0, MMP_NO_NEIGHBOUR },	/* each end alone */
	};

	CHECK_MIDDLE(rows, DEFAULTS);
	CHECK_MIDDLE(strict, ((const u32[KNOBS]){ 4, 16, 16, 32 }));
	CHECK_MIDDLE(lax, ((const u32[KNOBS]){ 4, 8, 16, 32 }));
}

TEST(groups_where_no_block_is_full)
{
	static const struct row rows[] = {
		{ FULL_4 HERE_4 NONE_4 NONE_4, 2, MMP_DENSE_NEIGHBOUR },
		{ NONE_4 FULL_4 "...*....", 2, MMP_DENSE_NEIGHBOUR },
		{ NONE_4 HERE_4 FULL_4 NONE_4, 2, MMP_DENSE_NEIGHBOUR },
		{ FULL_4 NONE_4 HERE_4 NONE_4, 2, MMP_DENSE_NEIGHBOUR },
		{ FULL_4 FULL_4 HERE_4 NONE_4, 3, MMP_DENSE_NEIGHBOUR },
		{ FULL_4 NONE_4 NONE_4 HERE_4, 0, MMP_NO_NEIGHBOUR },
		{ FULL_4 NONE_4 NONE_4 NONE_4 HERE_16, 2, MMP_DENSE_NEIGHBOUR },
		{ FULL_4 NONE_16 HERE_16, 0, MMP_NO_NEIGHBOUR },
		{ "uuu." HERE_4 NONE_4 NONE_4, 0, MMP_NO_NEIGHBOUR },
		{ "uuu." HERE_4 FULL_4 NONE_4, 2, MMP_DENSE_NEIGHBOUR },
		{ "uuu.u..." HERE_4 FULL_4, 0, MMP_NO_NEIGHBOUR },
		{ UNUSED_16 HERE_16, 3, MMP_DENSE_NEIGHBOUR },
	};
	static const struct row beside[] = {
		{ FULL_4 HERE_4 NONE_4 NONE_4, 2, MMP_DENSE_NEIGHBOUR },
		{ NONE_4 HERE_4 FULL_4 NONE_4, 2, MMP_DENSE_NEIGHBOUR },
	};

	CHECK_MIDDLE(rows, DEFAULTS);
	CHECK(beside, DEFAULTS);
}

/*
 * A block or group with one absent page, at any position, does not count as fully used, so the
 * fault gets order 0.
 */
TEST(each_page_of_an_example_counts)
{
	static const u32 strict[KNOBS] = { 4, 16, 16, 32 };
	char block[] = FULL_16 NONE_48 HERE_16, group[] = FULL_4 HERE_4 NONE_4 NONE_4;
	const struct row blocks[] = { { block, 0, MMP_NO_NEIGHBOUR } };
	const struct row groups[] = { { group, 0, MMP_NO_NEIGHBOUR } };
	unsigned int i;

	for (i = 0; i < 16; i++) {
		block[i] = '.';
		CHECK_MIDDLE(blocks, strict);
		block[i] = 'u';
	}
	for (i = 0; i < 4; i++) {
		group[i] = '.';
		CHECK(groups, DEFAULTS);
		group[i] = 'u';
	}
}

TEST(no_folio_fits)
{
	static const struct row rows[] = {
		{ "u*.............." FULL_16, 0, MMP_NO_ROOM },
		{ "...*u..........." FULL_16, 4, MMP_DENSE_NEIGHBOUR },
		{ "..*m............" FULL_16, 0, MMP_NO_ROOM },
		{ FULL_16 NONE_16 NONE_16 NONE_16 "*..", 0, MMP_NO_ROOM },
	};
	static const struct row edge[] = {
		{ "u*.............." FULL_16, 0, MMP_NO_ROOM },
		{ "..*m............" FULL_16, 0, MMP_NO_ROOM },
	};

	CHECK_MIDDLE(rows, DEFAULTS);
	CHECK(edge, DEFAULTS);
}

TEST(folios_not_used_to_their_end)
{
	static const struct row rows[] = {
		{ UNUSED_16 NONE_48 HERE_16, 0, MMP_SPARSE_NEIGHBOUR },
		{ HERE_16 "m" FULL_4 FULL_4 FULL_4 "uuu", 0, MMP_SPARSE_NEIGHBOUR },
		/* One fully used block makes up for one with an unused page. */
		{ FULL_16 NONE_16 NONE_16 UNUSED_16 HERE_16, 4, MMP_DENSE_NEIGHBOUR },
		{ UNUSED_16 HERE_16 FULL_16, 4, MMP_DENSE_NEIGHBOUR },
		{ UNUSED_16 UNUSED_16 NONE_48 HERE_16 FULL_16, 4, MMP_DENSE_NEIGHBOUR },
		{ UNUSED_16 NONE_16 UNUSED_16 NONE_48 HERE_16 NONE_16, 0, MMP_SPARSE_NEIGHBOUR },
		/*
		 * An unused page inside a 64 kB block makes the block count as unused, too, if a
		 * smaller folio ends at that page.
		 */
		{ FULL_4 "uuum" FULL_4 FULL_4 NONE_48 HERE_16, 0, MMP_SPARSE_NEIGHBOUR },
	};

	/*
	 * The first block of a page table has no stream downwards, so groups
	 * decide there.
	 */
	static const struct row everywhere[] = {
		{ UNUSED_16 NONE_16 NONE_16 UNUSED_16 HERE_16 FULL_16, 3, MMP_DENSE_NEIGHBOUR },
	};

	CHECK_MIDDLE(rows, DEFAULTS);
	CHECK(everywhere, DEFAULTS);
}

/*
 * A clear accessed bit inside a folio does not prove that the page is unused,
 * because reclaim and other code also clear ("age") accessed bits.
 */
TEST(aged_memory_nearby)
{
	static const struct row rows[] = {
		{ AGED_16 HERE_16, 0, MMP_NO_NEIGHBOUR },
		{ HERE_16 AGED_16, 0, MMP_NO_NEIGHBOUR },
		{ AGED_16 NONE_16 NONE_16 AGED_16 HERE_16 FULL_16, 4, MMP_DENSE_NEIGHBOUR },
		{ "ummmmmmmmmmmmmuu" NONE_16 NONE_16 AGED_16 HERE_16 FULL_16, 4, MMP_DENSE_NEIGHBOUR },
		{ "mmmm" NONE_4 "mmmm" HERE_4 FULL_4 NONE_4 NONE_4 NONE_4, 2, MMP_DENSE_NEIGHBOUR },
		/*
		 * A clear accessed bit of either inner page shows that other code has aged the
		 * 16 kB group.
		 */
		{ "umuu" NONE_4 "umuu" NONE_4 HERE_4 FULL_4 NONE_4 NONE_4, 2, MMP_DENSE_NEIGHBOUR },
		{ "uumu" NONE_4 "uumu" NONE_4 HERE_4 FULL_4 NONE_4 NONE_4, 2, MMP_DENSE_NEIGHBOUR },
		{ "muuu" NONE_4 "uuum" NONE_4 HERE_4 FULL_4 NONE_4 NONE_4, 0, MMP_NO_NEIGHBOUR },
		{ "ummuuuuuuuuuuuuu" NONE_48 HERE_16, 0, MMP_NO_NEIGHBOUR },
	};

	CHECK_MIDDLE(rows, DEFAULTS);
}

/* Swap entries near the fault do not count as used memory. */
TEST(swap_entries_nearby)
{
	static const struct row rows[] = {
		{ "ssssssssssssssss" HERE_16, 0, MMP_NO_NEIGHBOUR },
		{ "ssss" HERE_4 NONE_4 NONE_4, 0, MMP_NO_NEIGHBOUR },
		{ FULL_16 "..*s............", 4, MMP_DENSE_NEIGHBOUR },
	};
	static const struct row in[] = {
		{ "ssssssssssssssss*sssssssssssssss", 0, MMP_NO_NEIGHBOUR },
		{ FULL_16 "*sssssssssssssss", 4, MMP_DENSE_NEIGHBOUR },
		{ FULL_16 "*susssssssssssss", 0, MMP_NO_ROOM },
		{ UNUSED_16 NONE_48 "*sssssssssssssss", 0, MMP_SPARSE_NEIGHBOUR },
	};

	CHECK_MIDDLE(rows, DEFAULTS);
	CHECK_SWAPIN(in);
}

#define FULL_32		FULL_16 FULL_16
#define NONE_32		NONE_16 NONE_16

TEST(the_cap_at_its_bounds)
{
	static const struct row least[] = {
		{ FULL_16 HERE_16, 2, MMP_DENSE_NEIGHBOUR },
		{ FULL_4 FULL_4 HERE_4 NONE_4, 2, MMP_DENSE_NEIGHBOUR },
		{ UNUSED_16 NONE_48 HERE_16, 0, MMP_SPARSE_NEIGHBOUR },
		{ HERE_4, 0, MMP_NO_NEIGHBOUR },
	};
	static const struct row more[] = {
		{ NONE_16 FULL_16 HERE_16 NONE_16, 4, MMP_DENSE_NEIGHBOUR },
		{ FULL_32 HERE_16 NONE_16, 5, MMP_DENSE_NEIGHBOUR },
		{ HERE_16 NONE_16 FULL_32, 0, MMP_NO_NEIGHBOUR },
		{ NONE_16 "*..............." FULL_32, 5, MMP_DENSE_NEIGHBOUR },
		{ NONE_32 FULL_32 HERE_16 NONE_16 NONE_32, 5, MMP_DENSE_NEIGHBOUR },
		{ FULL_32 FULL_32 HERE_16 NONE_16 NONE_32, 6, MMP_DENSE_NEIGHBOUR },
		/*
		 * Areas above 64 kB are checked by a sample of pages, which includes the last page.
		 */
		{ FULL_16 UNUSED_16 FULL_32 HERE_16 NONE_16 NONE_32, 6, MMP_DENSE_NEIGHBOUR },
		{ FULL_32 FULL_16 UNUSED_16 HERE_16 FULL_16 NONE_32, 4, MMP_DENSE_NEIGHBOUR },
		/* The sample also includes the pages at one third of the area from each end. */
		{ "uuuuuuuuuu.uuuuu" FULL_16 HERE_16 NONE_16 NONE_32, 4, MMP_DENSE_NEIGHBOUR },
		{ FULL_16 "uuuuu.uuuuuuuuuu" HERE_16 NONE_16 NONE_32, 4, MMP_DENSE_NEIGHBOUR },
		{ "uuuuuuuuuuu.uuuu" FULL_16 HERE_16 NONE_16 NONE_32, 5, MMP_DENSE_NEIGHBOUR },
	};

	CHECK_MIDDLE(least, ((const u32[KNOBS]){ 2, 14, 16, 32 }));
	CHECK(more, ((const u32[KNOBS]){ 6, 14, 16, 32 }));
}

/*
 * A folio of 2 MB replaces a page table, so the limit is 1 MB where a page
 * table exists.
 */
TEST(beside_2_mb_a_page_table_has_1_mb)
{
	char pages[3 * SIM_TABLE + 1] = {};
	struct mmp_decision d;

	memset(pages, 'u', SIM_TABLE);
	memset(pages + SIM_TABLE, '.', 2 * SIM_TABLE);
	pages[SIM_TABLE] = '*';
	d = drawn(pages, SIM_TABLE, (const u32[KNOBS]){ 9, 14, 16, 1 }, 0, false);
	EXPECT(d.order, ==, 8);
	EXPECT(d.reason, ==, MMP_DENSE_NEIGHBOUR);
}

TEST(locked_areas_are_populated_anyway)
{
	static const struct row rows[] = {
		{ UNUSED_16 NONE_48 HERE_16, 4, MMP_LOCKED },
		{ NONE_16 HERE_16, 4, MMP_LOCKED },
	};
	static const struct row on_fault[] = {
		{ UNUSED_16 NONE_48 HERE_16, 0, MMP_SPARSE_NEIGHBOUR },
	};

	CHECK_FLAGS(rows, VM_LOCKED);
	CHECK_FLAGS(on_fault, VM_LOCKED | VM_LOCKONFAULT);
}

/*
 * Returns the decision for a fault without a page table, right after a huge
 * page.
 */
static struct mmp_decision behind_huge(u32 probe_blocks, unsigned long block,
				       unsigned long pmd_bits)
{
	struct mmp_decision d;
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_adaptive);
	sim.knob[MAX_ORDER] = MMP_MAX_ORDER;
	sim.knob[PROBE_BLOCKS] = probe_blocks;
	sim_vma(&sim, (block - 1) * SIM_TABLE, (block + 1) * SIM_TABLE);
	*sim_pmd(&sim, (block - 1) * SIM_TABLE) =
		__pmd(_PAGE_PRESENT | _PAGE_USER | _PAGE_PSE | pmd_bits);
	d = sim_ask(&sim, block * SIM_TABLE);
	sim_free(&sim);
	return d;
}

static void check_block(u32 probe_blocks, unsigned long block)
{
	bool probe = probe_blocks && block % probe_blocks == 0;
	struct mmp_decision d = behind_huge(probe_blocks, block, _PAGE_ACCESSED);

	at("block %lu of %u", block, probe_blocks);
	EXPECT(d.order, ==, probe ? MMP_MAX_ORDER - 1 : MMP_MAX_ORDER);
	EXPECT(d.reason, ==, probe ? MMP_PROBE : MMP_DENSE_NEIGHBOUR);
	d = behind_huge(probe_blocks, block, 0);
	EXPECT(d.order, ==, 0);
	EXPECT(d.reason, ==, MMP_NO_NEIGHBOUR);
}

/*
 * mlockall() populates all memory at once, so min_folios does not limit the
 * order.
 */
TEST(a_small_process_that_locks_its_memory)
{
	struct mmp_decision d;
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_adaptive);
	sim.mm.elsewhere = 0;
	sim.knob[MAX_ORDER] = MMP_MAX_ORDER;
	sim.vma.vm_flags = VM_LOCKED;
	sim_vma(&sim, 0, 2 * SIM_TABLE);
	d = sim_ask(&sim, SIM_TABLE);
	EXPECT(d.order, ==, MMP_MAX_ORDER);
	EXPECT(d.reason, ==, MMP_LOCKED);
	sim_free(&sim);
}

TEST(every_nth_block_is_a_probe)
{
	static const u32 knobs[] = { 0, 1, 2, 16, 32, 1024 };
	unsigned long block;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(knobs); i++)
		for (block = 1; block < 34; block++)
			check_block(knobs[i], block);
}
