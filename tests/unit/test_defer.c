// SPDX-License-Identifier: GPL-2.0
/*
 * adaptive: after how many small folios it defers (answers faults without
 * reading page tables), and which events end that.
 */
#include "anon_order/defer.h"
#include "check.h"
#include "policies.h"
#include "sim.h"

#define FAULTS	4096UL

/*
 * Touches one page in 64 kB, @faults times. Returns the page that it has
 * reached.
 */
static unsigned long sparse(struct sim *sim, unsigned long page, unsigned long faults)
{
	while (faults--) {
		sim_touch(sim, page);
		page += 16;
	}
	return page;
}

static unsigned long begin(struct sim *sim, unsigned long faults)
{
	sim_init(sim, &mmp_policy_anon_order_adaptive);
	sim_vma(sim, 0, 4 * FAULTS * 16);
	return sparse(sim, 0, faults);
}

/* Returns the number of faults for which the policy read page tables. */
static unsigned long looked_at(const struct sim *sim)
{
	return sim->reasons[MMP_NO_NEIGHBOUR];
}

TEST(sparse_faults_are_deferred)
{
	struct sim sim;
	unsigned long page = begin(&sim, 256);

	EXPECT(sim.reasons[MMP_DEFERRED], ==, 0);
	EXPECT(looked_at(&sim), ==, 256);
	sparse(&sim, page, FAULTS);
	EXPECT(sim.faults, ==, 256 + FAULTS);
	EXPECT(looked_at(&sim), >=, 256 + FAULTS / 65);
	EXPECT(looked_at(&sim), <=, 256 + 96);
	EXPECT(sim.reasons[MMP_DEFERRED], ==, sim.faults - looked_at(&sim));
	sim_free(&sim);
}

/*
 * After n >= 256 small folios, the next n/16 faults are deferred, at most 64. Asking for PMD size
 * in a new page table does not count as a fault.
 */
TEST(sparse_faults_are_looked_at_as_often_as_documented)
{
	unsigned long small = 256, next = 0, looks = 256, fault;
	struct sim sim;
	unsigned long page = begin(&sim, 256);

	for (fault = 0; fault < 3 * FAULTS; fault++) {
		if (small++ < next)
			continue;
		looks++;
		next = small + min(small / 16, 64UL);
	}
	sparse(&sim, page, 3 * FAULTS);
	EXPECT(looked_at(&sim), ==, looks);
	sim_free(&sim);
}

/*
 * If memory nearby is used but no 16 kB folio fits, only one fault in eight makes later faults skip
 * reading page tables.
 */
TEST(faults_within_memory_are_looked_at_more_often)
{
	unsigned long page = 0, small, next = 0, looks = 0, fault, before;
	struct sim sim;

	begin(&sim, 0);
	for (page = 0; page < 512 * 8; page++)
		if (page % 8 < 5)
			*sim_pte(&sim, page) = __pte(_PAGE_PRESENT | _PAGE_USER);
	for (page = 8, fault = 0; fault < 257; fault++, page += 8)
		sim_touch(&sim, page + 6);
	small = this_cpu_read(mmp_deferral.small);
	next = this_cpu_read(mmp_deferral.next);
	before = sim.reasons[MMP_NO_ROOM];
	EXPECT(before, ==, 257);
	for (fault = 0; fault < 250; fault++, page += 8) {
		sim_touch(&sim, page + 6);
		if (small++ < next)
			continue;
		looks++;
		next = small + (small % 8 ? 0 : min(small / 16, 64UL));
	}
	EXPECT(sim.reasons[MMP_NO_ROOM] - before, ==, looks);
	EXPECT(looks, <, 200);
	sim_free(&sim);
}

/* Returns how many faults a stream of 16 MiB takes after @faults sparse faults. */
static unsigned long stream_after(unsigned long faults)
{
	struct sim sim;
	unsigned long page = begin(&sim, faults), i;

	for (i = 0; i < 4096; i++)
		sim_touch(&sim, page + i);
	sim_free(&sim);
	return sim.faults - faults;
}

TEST(a_stream_is_noticed)
{
	const unsigned long at_once = stream_after(0);
	unsigned long faults;

	for (faults = 1; faults < FAULTS; faults += 37) {
		at("%lu sparse faults", faults);
		EXPECT(stream_after(faults), <=, at_once + 16 + min(faults / 4, 144UL));
	}
}

TEST(a_large_folio_ends_a_deferral)
{
	struct sim sim;
	unsigned long page = begin(&sim, 1000), before, i;

	for (i = 0; !sim.folios[4]; i++)
		sim_touch(&sim, page + i);
	before = sim.reasons[MMP_DEFERRED];
	sparse(&sim, 2 * FAULTS * 16, 100);
	EXPECT(sim.reasons[MMP_DEFERRED], ==, before);
	sparse(&sim, 3 * FAULTS * 16, 1000);
	EXPECT(sim.reasons[MMP_DEFERRED], >, before);
	sim_free(&sim);
}

/*
 * After more than 64 small folios, a large one makes the policy read page tables again, for as many
 * faults as defer.h says.
 */
TEST(large_folios_are_news_after_many_small_ones)
{
	u32 small, order;

	for (small = 60; small < 70; small++) {
		at("%u small folios", small);
		this_cpu_write(mmp_deferral.small, small);
		EXPECT(mmp_many_small(), ==, small > 64);
	}
	for (order = 2; order < 10; order++) {
		at("order %u", order);
		this_cpu_write(mmp_deferral.small, 1000);
		mmp_defer_later(order);
		EXPECT(256 - this_cpu_read(mmp_deferral.small), ==, min(8U << order, 256U));
		this_cpu_write(mmp_deferral.small, 0);
		mmp_defer_later(order);
		EXPECT(this_cpu_read(mmp_deferral.small), ==, 0);
	}
}

/* Faults answered in advance count as small folios, but only if the reason is deferring. */
TEST(answers_in_advance_count_as_deferred)
{
	enum mmp_reason reason;

	this_cpu_write(mmp_deferral.small, 300);
	this_cpu_write(mmp_ahead, 18 << MMP_AHEAD_SHIFT | MMP_DEFERRED);
	EXPECT(mmp_ahead_take(&reason), ==, 18);
	EXPECT(reason, ==, MMP_DEFERRED);
	EXPECT(this_cpu_read(mmp_deferral.small), ==, 318);
	EXPECT(mmp_ahead_take(&reason), ==, 0);
	this_cpu_write(mmp_ahead, MMP_AHEAD_MOST << MMP_AHEAD_SHIFT | MMP_CAP);
	EXPECT(mmp_ahead_take(&reason), ==, MMP_AHEAD_MOST);
	EXPECT(reason, ==, MMP_CAP);
	EXPECT(this_cpu_read(mmp_deferral.small), ==, 318);
}

TEST(another_process_is_looked_at)
{
	struct sim sim, other;
	unsigned long page = begin(&sim, FAULTS), before = sim.reasons[MMP_DEFERRED];

	EXPECT(before, >, 0);
	begin(&other, 100);
	EXPECT(looked_at(&other), ==, 100);
	sparse(&sim, page, 100);
	EXPECT(sim.reasons[MMP_DEFERRED], <=, before + 1);
	sim_free(&other);
	sim_free(&sim);
}
