// SPDX-License-Identifier: GPL-2.0
/* anon_order/adaptive: single decisions, each as a picture of the pages. */
#include <linux/bitops.h>
#include <string.h>

#include "check.h"
#include "walks.h"

enum { MAX_ORDER, RISE_ORDER, FALL_ORDER, PROBE_BLOCKS };

#define TEN	"uuuuuuuuuu"
#define RUN_15	TEN "uuuuu"
#define RUN_16	RUN_15 "u"

/* A page each: u used, m mapped but unused, s in swap, . empty, * the fault. */
struct row {
	const char *pages;
	unsigned int order;
	enum mmp_reason reason;
};

/* Whole picture = whole VMA, from page @start on. Returns where the fault is. */
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

static void check_row(const struct row *row, struct sim *sim, unsigned long start,
		      bool swapin)
{
	unsigned long fault = draw(sim, row->pages, start);
	struct mmp_decision d;

	if (swapin)
		*sim_pte(sim, fault) = __pte(fault << PAGE_SHIFT);
	d = sim_ask(sim, fault);
	at("\"%s\" from page %lu", row->pages, start);
	EXPECT(d.order, ==, row->order);
	EXPECT(d.reason, ==, row->reason);
}

/* Each row in the middle of a table, and across the edge between two. */
static void check_rows(const struct row *rows, unsigned int nr, const u32 *knob,
		       unsigned long flags, bool swapin)
{
	static const unsigned long starts[] = { 64, SIM_TABLE - 16, SIM_TABLE - 32 };
	unsigned int i;

	for (i = 0; i < nr * ARRAY_SIZE(starts); i++) {
		struct sim sim;

		sim_init(&sim, &mmp_policy_anon_order_adaptive);
		memcpy(sim.knob, knob, 4 * sizeof(*knob));
		sim.vma.vm_flags = flags;
		check_row(&rows[i % nr], &sim, starts[i / nr], swapin);
		sim_free(&sim);
	}
}

#define CHECK_ROWS(flags, swapin, ...)					\
	check_rows(rows, ARRAY_SIZE(rows), (const u32[4]){ __VA_ARGS__ }, flags, swapin)

TEST(forward_by_examples)
{
	static const struct row rows[] = {
		{ "*...............", 0, MMP_ALONE },
		{ "....*...", 0, MMP_ALONE },
		{ "u*......", 0, MMP_INSIDE },
		{ "uu*.....", 0, MMP_INSIDE },
		{ "uuu*....", 0, MMP_ALONE },
		{ "mmmu*...", 2, MMP_RUN },
		{ ".uuu*...", 0, MMP_RUN },
		{ "u..u*...", 0, MMP_RUN },
		{ "uu.u*...", 0, MMP_RUN },
		{ "uuuu.uuu*.......", 0, MMP_RUN },
		{ "uuu.*...", 0, MMP_ALONE },
		{ "....uuuu*.......", 2, MMP_RUN },
		{ ".uuuuuuu*.......", 2, MMP_RUN },
		{ RUN_16 "*...............", 4, MMP_RUN },
		{ "." RUN_15 "*...............", 3, MMP_RUN },
		{ RUN_16 RUN_16 "*...............", 4, MMP_RUN },
		{ RUN_16 "uuuu*...........", 2, MMP_RUN },
	};

	CHECK_ROWS(0, false, 4, 0, 9, 16);
}

TEST(backward_by_examples)
{
	static const struct row rows[] = {
		{ "...............*", 0, MMP_ALONE },
		{ "...*....", 0, MMP_ALONE },
		{ ".....*uu", 0, MMP_INSIDE },
		{ "....*uuu", 0, MMP_ALONE },
		{ "...*ummm", 2, MMP_RUN },
		{ "...*uuu.", 0, MMP_RUN },
		{ "...*u.uu", 0, MMP_RUN },
		{ "...*.uuu", 0, MMP_ALONE },
		{ "...*uuuu....", 2, MMP_RUN },
		{ ".......*uuuuuuuu", 3, MMP_RUN },
		{ ".......*uuuuuuu.", 2, MMP_RUN },
		{ "...............*" RUN_16, 4, MMP_RUN },
		{ "...............*" RUN_15 ".", 3, MMP_RUN },
		{ "...........*uuuu" RUN_16, 2, MMP_RUN },
	};

	CHECK_ROWS(0, false, 4, 0, 9, 16);
}

TEST(a_folio_not_used_to_its_end)
{
	static const struct row rows[] = {
		{ "uuum*...", 0, MMP_UNUSED },
		{ "...*muuu", 0, MMP_UNUSED },
		{ RUN_15 "m*...............", 0, MMP_UNUSED },
	};
	static const struct row falls_by_1[] = {
		{ RUN_15 "m*...............", 3, MMP_UNUSED },
		{ "...............*m" RUN_15, 3, MMP_UNUSED },
		{ "uuum*...", 2, MMP_UNUSED },
	};
	static const struct row falls_by_0[] = {
		{ RUN_15 "m*...............", 4, MMP_UNUSED },
	};

	CHECK_ROWS(0, false, 4, 0, 9, 16);
	check_rows(falls_by_1, ARRAY_SIZE(falls_by_1), (const u32[4]){ 4, 0, 1, 16 }, 0, false);
	check_rows(falls_by_0, ARRAY_SIZE(falls_by_0), (const u32[4]){ 4, 0, 0, 16 }, 0, false);
}

TEST(rising_faster)
{
	static const struct row rise_1[] = {
		{ "..uu*...", 2, MMP_RUN },
		{ "...u*...", 0, MMP_RUN },
		{ "...*uu..", 2, MMP_RUN },
		{ "....uuuu*.......", 3, MMP_RUN },
	};
	static const struct row rise_2[] = {
		{ "...u*...", 2, MMP_RUN },
		{ ".......u*.......", 2, MMP_RUN },
		{ "......uu*.......", 3, MMP_RUN },
		{ "............uuuu*...............", 4, MMP_RUN },
		{ ".............uuu*...............", 3, MMP_RUN },
		{ "...............*u...............", 2, MMP_RUN },
		{ "...............m*...............", 0, MMP_UNUSED },
		{ "................*...............", 0, MMP_ALONE },
	};

	check_rows(rise_1, ARRAY_SIZE(rise_1), (const u32[4]){ 9, 1, 9, 16 }, 0, false);
	check_rows(rise_2, ARRAY_SIZE(rise_2), (const u32[4]){ 4, 2, 9, 16 }, 0, false);
}

/* In swap is as good as used for a first touch, and gone for swap-in. */
TEST(swap_entries_nearby)
{
	static const struct row rows[] = {
		{ "ssss*...", 2, MMP_RUN },
		{ "...*ssss", 2, MMP_RUN },
		{ "sssm*...", 0, MMP_UNUSED },
	};
	static const struct row in[] = {
		{ "ssss*sss", 0, MMP_ALONE },
		{ "suuu*sss", 0, MMP_RUN },
		{ "uuum*sss", 0, MMP_UNUSED },
		{ "....*...", 0, MMP_ALONE },
	};

	CHECK_ROWS(0, false, 4, 0, 9, 16);
	check_rows(in, ARRAY_SIZE(in), (const u32[4]){ 4, 0, 9, 16 }, 0, true);
}

TEST(the_cap_at_its_bounds)
{
	static const struct row least[] = {
		{ RUN_16 "*...............", 2, MMP_RUN },
		{ "...............*" RUN_16, 2, MMP_RUN },
		{ RUN_15 "m*...............", 0, MMP_UNUSED },
		{ "*...", 0, MMP_ALONE },
	};
	static const struct row largest[] = {
		{ ".......u*.......", 0, MMP_RUN },
		{ "uuuuuuuu*.......", 3, MMP_RUN },
	};

	check_rows(least, ARRAY_SIZE(least), (const u32[4]){ 2, 0, 9, 16 }, 0, false);
	check_rows(least, 2, (const u32[4]){ 2, 2, 0, 0 }, 0, false);
	check_rows(largest, ARRAY_SIZE(largest), (const u32[4]){ 9, 0, 9, 16 }, 0, false);
}

TEST(locked_areas_are_populated_anyway)
{
	static const struct row rows[] = {
		{ "*...............", 4, MMP_LOCKED },
		{ ".....*..........", 4, MMP_LOCKED },
	};
	static const struct row on_fault[] = {
		{ "*...............", 0, MMP_ALONE },
	};

	CHECK_ROWS(VM_LOCKED, false, 4, 0, 9, 16);
	check_rows(on_fault, ARRAY_SIZE(on_fault), (const u32[4]){ 4, 0, 9, 16 },
		   VM_LOCKED | VM_LOCKONFAULT, false);
}

static struct mmp_decision drawn(const char *pages, unsigned long start, const u32 *knob,
				 bool swapin)
{
	struct mmp_decision d;
	unsigned long fault;
	struct sim sim;

	sim_init(&sim, &mmp_policy_anon_order_adaptive);
	memcpy(sim.knob, knob, 4 * sizeof(*knob));
	fault = draw(&sim, pages, start);
	if (swapin)
		*sim_pte(&sim, fault) = __pte(fault << PAGE_SHIFT);
	d = sim_ask(&sim, fault);
	sim_free(&sim);
	return d;
}

#define WIDTH	600
#define EDGE	300	/* of the fault, with folios of order 8 to either side */
#define MIDDLE	(2 * SIM_TABLE + SIM_TABLE / 2)

/* Some pages, now many and now few; now a long area and now a short one. */
static void paint(char *pages)
{
	unsigned int holes = 1 << pick(10), i;

	for (i = 0; i < WIDTH; i++)
		pages[i] = pick(holes) ? "uuuuumss"[pick(8)] : '.';
	pages[EDGE - pick(2)] = '*';
	if (pick(2))
		pages[EDGE + 1 + pick(WIDTH - EDGE - 1)] = '\0';
}

/* Any picture means the same in one table and across the edge of two. */
TEST(tables_make_no_difference)
{
	unsigned int n;

	for (n = 0; n < 2000; n++) {
		const u32 knob[4] = { 2 + pick(7), pick(3), pick(6), pick(3) };
		unsigned long cut = pick(2) ? pick(EDGE) : 0;
		struct mmp_decision one, two;
		char pages[WIDTH + 1] = {};
		bool swapin = pick(2);

		paint(pages);
		one = drawn(pages + cut, MIDDLE - EDGE + cut, knob, swapin);
		two = drawn(pages + cut, MIDDLE + SIM_TABLE / 2 - EDGE + cut, knob, swapin);
		at("picture %u, knobs %u %u %u, swapin %d", n, knob[0], knob[1], knob[2],
		   swapin);
		EXPECT(one.order, ==, two.order);
		EXPECT(one.reason, ==, two.reason);
	}
}

/* What a fault in an empty table gets behind a huge page. */
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
	EXPECT(d.reason, ==, probe ? MMP_PROBE : MMP_RUN);
	d = behind_huge(probe_blocks, block, 0);
	EXPECT(d.order, ==, 0);
	EXPECT(d.reason, ==, MMP_UNUSED);
}

TEST(every_nth_block_is_a_probe)
{
	static const u32 knobs[] = { 0, 1, 2, 16, 1024 };
	unsigned long block;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(knobs); i++)
		for (block = 1; block < 34; block++)
			check_block(knobs[i], block);
}
