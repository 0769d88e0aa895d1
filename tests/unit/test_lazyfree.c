// SPDX-License-Identifier: GPL-2.0
/*
 * The counts of module/madv_free/lazyfree.c, compared with simulated address
 * spaces in which the state of every page is known. As in the kernel, a call
 * frees its pages some time after it was allowed.
 */
#include <linux/minmax.h>
#include <string.h>

#include "check.h"
#include "sense/available.h"
#include "madv_free/lazyfree.h"
#include "policies.h"

#define AREAS		64UL
#define PAGES		(AREAS * MMP_AREA_PAGES)
#define FIRST		(1000 * MMP_AREA_SIZE)
#define TASKS		8

struct mm_struct {
	struct mmp_lazy lazy;
	unsigned char page[PAGES];
	/* call of each task: first page, number of pages, 1 if running */
	struct mmp_lazy_call begun[TASKS];
	unsigned long counted;	/* areas that were recounted */
	unsigned long asked;	/* areas and holes in which mapped pages were counted */
	unsigned long looked;	/* areas whose entries were read for that count */
};

enum { NONE, DIRTY, LAZY };

static struct mm_struct mm, other;
static atomic_long_t sum;
static bool all_ended;
static unsigned long rng;

static unsigned long next_random(unsigned long n)
{
	rng = rng * 6364136223846793005UL + 1442695040888963407UL;
	return (rng >> 33) % n;
}

static unsigned long count(struct mm_struct *in, unsigned long start, unsigned long end,
			   int least)
{
	unsigned long i, pages = 0;

	for (i = (start - FIRST) / PAGE_SIZE; i < (end - FIRST) / PAGE_SIZE && i < PAGES; i++)
		pages += in->page[i] >= least;
	return pages;
}

/* Bytes of the hole behind the pages that one call of count_pages() passes over. */
static unsigned long hole_size = 1UL << 39;
static unsigned long behind_hole = ~0UL;	/* all memory from this address on is mapped */

static unsigned long count_pages(struct mm_struct *in, unsigned long addr, unsigned long *end,
				 bool look)
{
	bool there = addr < FIRST + PAGES * PAGE_SIZE || addr >= behind_hole;
	unsigned long piece = there ? MMP_AREA_SIZE : hole_size;

	in->asked++;
	in->looked += look;
	*end = min(*end, (addr | (piece - 1)) + 1);
	if (!look && there)
		return (*end - addr) / PAGE_SIZE;
	return there ? count(in, addr, *end, DIRTY) : 0;
}

/* Called during a recount, to act as another task; or NULL. */
static void (*meanwhile)(struct mm_struct *in);
static bool cannot_tell;	/* recounts fail */
static unsigned long elsewhere = 1;	/* lazily freed pages in each area beyond the AREAS */

static unsigned long count_lazy(struct mmp_lazy *lazy, unsigned long start)
{
	struct mm_struct *in = lazy->mm;
	unsigned long pages = elsewhere;

	in->counted++;
	if (cannot_tell)
		return MMP_LAZY_UNKNOWN;
	if (start < FIRST + PAGES * PAGE_SIZE)
		pages = count(in, start, start + MMP_AREA_SIZE, LAZY);
	if (meanwhile)
		meanwhile(in);
	return pages;
}

static unsigned long asked_who_ended;

static bool ended(u32 task)
{
	asked_who_ended++;
	return all_ended;
}

static const struct mmp_lazy_ops ops = { count_pages, count_lazy, ended };

static unsigned long truth(struct mm_struct *in)
{
	return count(in, FIRST, FIRST + PAGES * PAGE_SIZE, LAZY);
}

static void begin(struct mm_struct *in)
{
	memset(in, 0, sizeof(*in));
	memset(in->page, DIRTY, sizeof(in->page));
	in->lazy.ops = &ops;
	in->lazy.mm = in;
	mmp_lazy_move(&in->lazy, &sum);
}

static enum mmp_lazy_answer ask(struct mm_struct *in, u32 task, unsigned long first, unsigned long pages,
			 unsigned long limit, bool shared)
{
	const struct mmp_lazy_call call = {
		FIRST + first * PAGE_SIZE, FIRST + (first + pages) * PAGE_SIZE, task
	};

	struct mmp_lazy_count count;

	mmp_lazy_count(&in->lazy, &call, limit, &count);
	return mmp_lazy_ask(&in->lazy, &call, &count, (struct mmp_lazy_limit){ limit, shared });
}

/*
 * Changes the state of all present pages of a range, as the kernel does after
 * the policy's answer.
 */
static void clear(struct mm_struct *in, unsigned long first, unsigned long pages, int to)
{
	for (; pages--; first++)
		if (in->page[first] != NONE)
			in->page[first] = to;
}

static enum mmp_lazy_answer call(struct mm_struct *in, unsigned long first, unsigned long pages,
			  unsigned long limit)
{
	enum mmp_lazy_answer answer = ask(in, 1, first, pages, limit, false);

	clear(in, first, pages, answer == MMP_ANSWER_LAZY ? LAZY : NONE);
	return answer;
}

/* Begins a madvise() call of a task, or ends its call if one is running. */
static void begin_or_end(struct mm_struct *in, unsigned int task, unsigned long limit)
{
	struct mmp_lazy_call *begun = &in->begun[task];
	unsigned long first, pages;

	if (begun->task) {
		clear(in, begun->start, begun->end, LAZY);
		begun->task = 0;
		return;
	}
	pages = 1 + next_random(next_random(8) ? 64 : 3000);
	first = next_random(PAGES - pages);
	if (ask(in, task + 1, first, pages, limit, false) == MMP_ANSWER_LAZY)
		*begun = (struct mmp_lazy_call){ first, pages, 1 };
	else
		clear(in, first, pages, NONE);
}

/* Writes to pages again, unless a call is freeing some of them. */
static void reuse_some(struct mm_struct *in, unsigned long first, unsigned long pages)
{
	unsigned int task;

	for (task = 0; task < TASKS; task++)
		if (in->begun[task].task && in->begun[task].start < first + pages &&
		    in->begun[task].start + in->begun[task].end > first)
			return;
	memset(in->page + first, DIRTY, pages);
}

/*
 * Returns the number of sets whose bit does not match whether they have areas.
 */
static unsigned long sets_that_are_wrong(const struct mmp_lazy *lazy)
{
	unsigned long set, way, wrong = 0;

	for (set = 0; set < MMP_LAZY_SETS; set++) {
		bool any = false;

		for (way = 0; way < MMP_LAZY_WAYS; way++)
			any |= lazy->areas[set * MMP_LAZY_WAYS + way] != 0;
		wrong += (find_next_bit(lazy->sets, MMP_LAZY_SETS, set) == set) != any;
	}
	return wrong;
}

static void storm(unsigned int tasks, unsigned long limit, unsigned long reuse)
{
	int step;

	begin(&mm);
	for (step = 0; step < 4000; step++) {
		unsigned long first = next_random(PAGES - 600);

		if (next_random(100) < reuse)
			reuse_some(&mm, first, next_random(600));
		else
			begin_or_end(&mm, next_random(tasks), limit);
		at("step %d of %u tasks, limit %lu, reuse %lu", step, tasks, limit, reuse);
		EXPECT(truth(&mm), <=, mm.lazy.pages);
		EXPECT(mm.lazy.pages, <=, limit);
	}
	EXPECT(sets_that_are_wrong(&mm.lazy), ==, 0);
	EXPECT(atomic_long_read(&sum), ==, mm.lazy.pages);
	mmp_lazy_move(&mm.lazy, NULL);
	EXPECT(atomic_long_read(&sum), ==, 0);
}

TEST(lazyfree_never_knows_less_than_there_is)
{
	static const unsigned long limits[] = { 1, 100, 3000, PAGES / 4, 2 * PAGES };
	unsigned int i, tasks;

	for (i = 0; i < ARRAY_SIZE(limits); i++)
		for (tasks = 1; tasks <= TASKS; tasks += 7) {
			storm(tasks, limits[i], 20);
			storm(tasks, limits[i], 60);
		}
}

/* A chunk that is freed and reused repeatedly counts once against the limit. */
TEST(lazyfree_one_chunk_fits_a_small_limit)
{
	int i;

	begin(&mm);
	for (i = 0; i < 10000; i++) {
		at("round %d", i);
		EXPECT(call(&mm, 1000, 32, 128), ==, MMP_ANSWER_LAZY);
		memset(mm.page + 1000, DIRTY, 32);
	}
}

/*
 * If half of all chunks are free at any time, a limit of 55 % of the pages
 * suffices.
 */
TEST(lazyfree_reuse_is_noticed)
{
	enum { CHUNK = 32, CHUNKS = PAGES / CHUNK };
	unsigned long eager = 0, answers = 0, slot, i;
	static unsigned long is_free[CHUNKS];

	begin(&mm);
	for (i = 0; i < 40 * CHUNKS; i++) {
		slot = i < CHUNKS / 2 ? i : next_random(CHUNKS);
		if (is_free[slot]) {
			while (is_free[slot = next_random(CHUNKS)])
				;
		}
		answers++;
		eager += call(&mm, slot * CHUNK, CHUNK, PAGES * 55 / 100) != MMP_ANSWER_LAZY;
		is_free[slot] = 1;
		if (i < CHUNKS / 2)
			continue;
		while (!is_free[slot = next_random(CHUNKS)])
			;
		memset(mm.page + slot * CHUNK, DIRTY, CHUNK);
		is_free[slot] = 0;
	}
	EXPECT(eager, <, answers / 50);
	EXPECT(mm.counted * MMP_AREA_PAGES, <=, answers * CHUNK * 16);
}

/* Pages that stay lazily freed do not cause unlimited recounts. */
TEST(lazyfree_looks_are_paid_for)
{
	unsigned long i, before;

	begin(&mm);
	EXPECT(call(&mm, 0, PAGES / 2, PAGES / 2), ==, MMP_ANSWER_LAZY);
	EXPECT(call(&mm, PAGES / 2, 1, PAGES / 2), ==, MMP_ANSWER_LIMIT);
	before = mm.counted;
	for (i = 1; i < 3000; i++)
		EXPECT(call(&mm, PAGES / 2 + i, 1, PAGES / 2), ==, MMP_ANSWER_LIMIT);
	EXPECT((mm.counted - before) * MMP_AREA_PAGES, <=, 3000 * 16 + 20 * MMP_AREA_PAGES);
	EXPECT(mm.lazy.pages, ==, PAGES / 2);
}

TEST(lazyfree_a_refused_call_changes_nothing)
{
	begin(&mm);
	EXPECT(call(&mm, 0, 100, 99), ==, MMP_ANSWER_LIMIT);
	EXPECT(mm.lazy.pages, ==, 0);
	memset(mm.page, DIRTY, 100);
	EXPECT(call(&mm, 0, 100, 0), ==, MMP_ANSWER_LIMIT);
	memset(mm.page, DIRTY, 100);
	EXPECT(call(&mm, 0, 100, 100), ==, MMP_ANSWER_LAZY);
	EXPECT(mm.lazy.pages, ==, 100);
}

/*
 * In the first 20 areas of a range, only present pages count against the limit.
 */
TEST(lazyfree_empty_ranges_are_free)
{
	begin(&mm);
	memset(mm.page, NONE, PAGES);
	memset(mm.page + 700, DIRTY, 10);
	EXPECT(call(&mm, 0, 20 * MMP_AREA_PAGES, 10), ==, MMP_ANSWER_LAZY);
	EXPECT(mm.lazy.pages, ==, 10);
	EXPECT(call(&mm, 0, 20 * MMP_AREA_PAGES + 1, 10), ==, MMP_ANSWER_LIMIT);
}

/* A call on 64 TB of absent pages does a bounded amount of work. */
TEST(lazyfree_long_ranges_are_little_work)
{
	const unsigned long pages = 64UL << 40 >> PAGE_SHIFT;

	begin(&mm);
	memset(mm.page, NONE, PAGES);
	mm.page[0] = DIRTY;
	EXPECT(ask(&mm, 1, 0, pages, 2 * PAGES, false), ==, MMP_ANSWER_LAZY);
	EXPECT(mm.lazy.pages, <=, 1 + (AREAS - 20) * MMP_AREA_PAGES);
	EXPECT(mm.looked, ==, 20);
	EXPECT(mm.asked, <=, 2 * (AREAS + (64UL << 40) / hole_size) + 2);
}

/* A hole of any size is one step, so pages after it are counted. */
TEST(lazyfree_pages_behind_a_hole)
{
	const unsigned long first = (hole_size - FIRST) / PAGE_SIZE;

	begin(&mm);
	behind_hole = hole_size;
	EXPECT(ask(&mm, 1, 0, first + MMP_AREA_PAGES, 2 * PAGES, false), ==, MMP_ANSWER_LAZY);
	EXPECT(mm.lazy.pages, ==, PAGES + MMP_AREA_PAGES);
	behind_hole = ~0UL;
}

/* A range without pages adds none, and is never refused. */
TEST(lazyfree_nothing_is_lazy)
{
	begin(&mm);
	memset(mm.page, NONE, PAGES);
	EXPECT(ask(&mm, 1, 0, 100, 10, false), ==, MMP_ANSWER_LAZY);
	EXPECT(ask(&mm, 1, 0, 100, 0, false), ==, MMP_ANSWER_LAZY);
	EXPECT(mm.lazy.pages, ==, 0);
}

/*
 * A range at its most expensive, with a page in each page table, or in each 32
 * pages: a call reads at most 20 page tables.
 */
TEST(lazyfree_a_call_looks_at_few_tables)
{
	unsigned long step, i, limit;

	for (step = 32; step <= MMP_AREA_PAGES; step *= 16)
		for (limit = 1; limit <= 4 * PAGES; limit *= 4) {
			begin(&mm);
			memset(mm.page, NONE, PAGES);
			for (i = 0; i < PAGES; i += step)
				mm.page[i] = DIRTY;
			for (i = 0; i < 20; i++) {
				mm.looked = 0;
				mm.counted = 0;
				at("step %lu, limit %lu, call %lu", step, limit, i);
				ask(&mm, 1, 0, PAGES, limit, false);
				EXPECT(mm.looked, <=, 20);
				EXPECT(mm.counted, <=, 20);
			}
		}
}

/* Unused page table reads are kept for later calls, but at most those of 20 areas. */
TEST(lazyfree_looks_are_not_saved_up)
{
	unsigned long i;

	begin(&mm);
	EXPECT(call(&mm, 0, PAGES / 2, PAGES), ==, MMP_ANSWER_LAZY);
	for (i = 0; i < 100; i++) {
		call(&mm, PAGES / 2, PAGES / 4, PAGES);
		memset(mm.page + PAGES / 2, DIRTY, PAGES / 4);
	}
	mm.counted = 0;
	call(&mm, PAGES / 2 + PAGES / 4, 1, 1);
	/* The reads saved are those of 20 areas; steps from area to area use some of them. */
	EXPECT(mm.counted, ==, 19);
}

/* An MADV_FREE call stops counting pages at its limit, and after 2,048 areas and holes. */
TEST(lazyfree_asks_no_more_than_it_needs)
{
	begin(&mm);
	EXPECT(ask(&mm, 1, 0, PAGES, 600, false), ==, MMP_ANSWER_LIMIT);
	EXPECT(mm.asked, ==, 2);
	mm.asked = 0;
	hole_size = MMP_AREA_SIZE;
	EXPECT(ask(&mm, 1, PAGES - 1, 64UL << 40 >> PAGE_SHIFT, PAGES, false), ==, MMP_ANSWER_LIMIT);
	hole_size = 1UL << 39;
	EXPECT(mm.asked, ==, 2048);
	EXPECT(mm.lazy.pages, ==, 0);
}

/*
 * Other tasks unmap pages that a call is about to free: the next recount
 * corrects the sum.
 */
TEST(lazyfree_pages_that_go_meanwhile)
{
	const struct mmp_lazy_call call = { FIRST, FIRST + 3 * MMP_AREA_SIZE, 1 };
	const struct mmp_lazy_limit limit = { PAGES, false };
	struct mmp_lazy_count count;

	begin(&mm);
	mmp_lazy_count(&mm.lazy, &call, PAGES, &count);
	EXPECT(count.pages, ==, 3 * MMP_AREA_PAGES);
	memset(mm.page, NONE, 3 * MMP_AREA_PAGES);
	EXPECT(mmp_lazy_ask(&mm.lazy, &call, &count, limit), ==, MMP_ANSWER_LAZY);
	EXPECT(mm.lazy.pages, ==, 3 * MMP_AREA_PAGES);
	EXPECT(ask(&mm, 1, PAGES - 1, 1, 1, false), ==, MMP_ANSWER_LAZY);
	EXPECT(mm.lazy.pages, ==, 1);
}

/*
 * Lets another task free pages of the area during its recount. The recount misses them, so its
 * result must be discarded.
 */
static void free_one_more(struct mm_struct *in)
{
	meanwhile = NULL;
	EXPECT(ask(in, 2, 200, 10, PAGES, false), ==, MMP_ANSWER_LAZY);
	clear(in, 200, 10, LAZY);
	EXPECT(ask(in, 2, 3 * MMP_AREA_PAGES, 1, PAGES, false), ==, MMP_ANSWER_LAZY);
	clear(in, 3 * MMP_AREA_PAGES, 1, LAZY);
}

/*
 * Lets another task free pages of the area, as free_one_more() does, and then recount the area, so
 * that the sum is as before.
 */
static void free_and_look(struct mm_struct *in)
{
	free_one_more(in);
	memset(in->page, DIRTY, 10);
	all_ended = true;
	EXPECT(mmp_lazy_look_at(&in->lazy, in->lazy.hand), ==, true);
	all_ended = false;
}

TEST(lazyfree_a_count_that_others_have_overtaken)
{
	unsigned long i;

	for (i = 0; i < 2; i++) {
		begin(&mm);
		EXPECT(call(&mm, 0, 100, PAGES), ==, MMP_ANSWER_LAZY);
		EXPECT(call(&mm, 5 * MMP_AREA_PAGES, 1, PAGES), ==, MMP_ANSWER_LAZY);
		while (mm.lazy.areas[mm.lazy.hand] >> PMD_SHIFT != FIRST >> PMD_SHIFT)
			mm.lazy.hand++;
		meanwhile = i ? free_and_look : free_one_more;
		at("case %lu", i);
		EXPECT(mmp_lazy_look_at(&mm.lazy, mm.lazy.hand), ==, false);
		EXPECT(truth(&mm), ==, mm.lazy.pages);
	}
}

/* A recount that fails changes no count, but costs page table reads. */
TEST(lazyfree_a_look_that_cannot_tell)
{
	begin(&mm);
	EXPECT(call(&mm, 0, 10, PAGES), ==, MMP_ANSWER_LAZY);
	EXPECT(call(&mm, 5 * MMP_AREA_PAGES, 40, PAGES), ==, MMP_ANSWER_LAZY);
	cannot_tell = true;
	mm.counted = 0;
	EXPECT(call(&mm, 6 * MMP_AREA_PAGES, 1, 50), ==, MMP_ANSWER_LIMIT);
	cannot_tell = false;
	EXPECT(mm.lazy.pages, ==, 50);
	EXPECT(mm.counted, <=, 64);
}

/* Ends the tracking of the process during the recount. */
static void forget(struct mm_struct *in)
{
	mmp_lazy_move(&in->lazy, NULL);
}

TEST(lazyfree_forgotten_meanwhile)
{
	unsigned int shared;

	for (shared = 0; shared < 2; shared++) {
		begin(&mm);
		EXPECT(call(&mm, 0, 100, 100), ==, MMP_ANSWER_LAZY);
		EXPECT(call(&mm, 5 * MMP_AREA_PAGES, 100, 200), ==, MMP_ANSWER_LAZY);
		meanwhile = forget;
		ask(&mm, 1, 6 * MMP_AREA_PAGES, 100, 200, shared);
		meanwhile = NULL;
		EXPECT(atomic_long_read(&sum), ==, 0);
	}
}

/* During a recount, seven other tasks call mmp_lazy_ask(), which may recount areas, too. */
static void ask_in_turn(struct mm_struct *in)
{
	static u32 task = 1;

	if (task < 8) {
		task++;
		EXPECT(ask(in, task, 6 * MMP_AREA_PAGES + task, 1, 200, false), ==, MMP_ANSWER_LIMIT);
		task--;
	}
}

/*
 * The page table reads saved for a process are spent only once, even if other tasks ask during a
 * recount.
 */
TEST(lazyfree_looks_are_spent_once)
{
	unsigned long i;

	for (i = MMP_AREA_PAGES; i <= MMP_LAZY_MAX_LOOKS; i += 101) {
		begin(&mm);
		EXPECT(call(&mm, 0, 100, 200), ==, MMP_ANSWER_LAZY);
		EXPECT(call(&mm, 5 * MMP_AREA_PAGES, 100, 200), ==, MMP_ANSWER_LAZY);
		mm.lazy.looks = i;
		mm.counted = 0;
		meanwhile = ask_in_turn;
		at("%lu looks", i);
		EXPECT(ask(&mm, 1, 6 * MMP_AREA_PAGES, 1, 200, false), ==, MMP_ANSWER_LIMIT);
		meanwhile = NULL;
		EXPECT(mm.counted, <=, (i + 8 * MMP_LAZY_LOOKS) / MMP_AREA_PAGES);
		EXPECT(mm.lazy.looks, <=, i + 8 * MMP_LAZY_LOOKS);
	}
}

/*
 * The calls of 64 tasks are recorded. A call of one more task is refused until
 * one of these calls has ended.
 */
TEST(lazyfree_many_tasks)
{
	u32 task;

	begin(&mm);
	all_ended = false;
	for (task = 1; task <= 64; task++)
		EXPECT(ask(&mm, task, task, 1, PAGES, false), ==, MMP_ANSWER_LAZY);
	EXPECT(ask(&mm, task, task, 1, PAGES, false), ==, MMP_ANSWER_UNKNOWN);
	EXPECT(ask(&mm, 5, 5, 1, PAGES, false), ==, MMP_ANSWER_LAZY);
	all_ended = true;
	EXPECT(ask(&mm, task, task, 1, PAGES, false), ==, MMP_ANSWER_LAZY);
	all_ended = false;
}

/*
 * An area in the range of a running call is not recounted, as the count would
 * be too low.
 */
TEST(lazyfree_waits_for_calls)
{
	begin(&mm);
	EXPECT(ask(&mm, 1, 0, 100, 200, false), ==, MMP_ANSWER_LAZY);
	EXPECT(ask(&mm, 2, 100, 150, 200, false), ==, MMP_ANSWER_LIMIT);
	all_ended = true;	/* the first call, whose pages were written to again */
	EXPECT(ask(&mm, 2, 100, 150, 200, false), ==, MMP_ANSWER_LAZY);
	EXPECT(mm.lazy.pages, ==, 150);
	all_ended = false;
}

/*
 * An area that cannot be recounted, because another call is freeing pages of it, costs page table
 * reads, so that a call does not return to it thousands of times.
 */
TEST(lazyfree_busy_areas_cost_looks)
{
	begin(&mm);
	EXPECT(ask(&mm, 1, 0, 100, 200, false), ==, MMP_ANSWER_LAZY);
	mm.lazy.looks = MMP_LAZY_MAX_LOOKS;
	asked_who_ended = 0;
	EXPECT(ask(&mm, 2, MMP_AREA_PAGES, 150, 200, false), ==, MMP_ANSWER_LIMIT);
	/*
	 * Each round costs 8 reads, one per slot of the set, and 64 for the
	 * busy area. So the call comes to this area 136 times.
	 */
	EXPECT(asked_who_ended, ==, 136);
	EXPECT(mm.lazy.looks, <=, MMP_AREA_PAGES);
}

/* If a process moves to another group, its lazily freed pages are charged to that group. */
TEST(lazyfree_a_process_moves)
{
	static atomic_long_t there;

	begin(&mm);
	EXPECT(call(&mm, 0, 60, 100), ==, MMP_ANSWER_LAZY);
	mmp_lazy_move(&mm.lazy, &there);
	EXPECT(atomic_long_read(&sum), ==, 0);
	EXPECT(atomic_long_read(&there), ==, 60);
	EXPECT(ask(&mm, 1, 100, 50, 100, true), ==, MMP_ANSWER_LIMIT);
	mmp_lazy_move(&mm.lazy, NULL);
	EXPECT(atomic_long_read(&there), ==, 0);
}

TEST(lazyfree_groups_share_a_limit)
{
	begin(&mm);
	begin(&other);
	EXPECT(ask(&mm, 1, 0, 60, 100, true), ==, MMP_ANSWER_LAZY);
	EXPECT(ask(&other, 2, 0, 60, 100, true), ==, MMP_ANSWER_LIMIT);
	EXPECT(ask(&other, 2, 0, 60, 100, false), ==, MMP_ANSWER_LAZY);
	EXPECT(atomic_long_read(&sum), ==, 120);
	mmp_lazy_move(&mm.lazy, NULL);
	EXPECT(atomic_long_read(&sum), ==, 60);
}

/*
 * A set holds eight areas. A ninth one is refused until one of the eight is
 * empty.
 */
TEST(lazyfree_full_set)
{
	unsigned long areas[MMP_LAZY_AREAS], i, n = 0;

	begin(&mm);
	memset(areas, 0, sizeof(areas));
	for (i = 0; i < MMP_LAZY_AREAS; i++)
		mmp_lazy_found(&mm.lazy, FIRST + (PAGES + i * MMP_AREA_PAGES) * PAGE_SIZE, 1);
	EXPECT(mm.lazy.pages, ==, MMP_LAZY_AREAS);
	EXPECT(mm.counted, ==, 0);	/* mmp_lazy_found() recounts no area */
	for (i = 0; i < MMP_LAZY_AREAS; i++)
		n += !mm.lazy.areas[i];
	EXPECT(n, <, MMP_LAZY_AREAS / 4);
	for (i = 0; i < AREAS && call(&mm, i * MMP_AREA_PAGES, 1, PAGES) == MMP_ANSWER_LAZY; i++)
		;
	EXPECT(i, <, AREAS);
	EXPECT(mm.lazy.pages, ==, MMP_LAZY_AREAS + i);
}

/* A used slot is not reassigned, even if the caller could pay for recounts. */
TEST(lazyfree_slots_in_use_stay)
{
	unsigned long i, n = 0, sums = 0, before;

	begin(&mm);
	for (i = 0; i < MMP_LAZY_AREAS; i++)
		mmp_lazy_found(&mm.lazy, FIRST + (PAGES + i * MMP_AREA_PAGES) * PAGE_SIZE, 1);
	for (i = 0; i < MMP_LAZY_AREAS; i++)
		n += !!mm.lazy.areas[i];
	for (i = 0; i < AREAS; i++) {
		mm.lazy.looks = MMP_LAZY_MAX_LOOKS;
		before = mm.lazy.pages;
		if (call(&mm, i * MMP_AREA_PAGES, 1, PAGES) == MMP_ANSWER_LAZY)
			n++;
		else
			EXPECT(mm.lazy.pages, ==, before);
	}
	for (i = 0; i < MMP_LAZY_AREAS; i++) {
		n -= !!mm.lazy.areas[i];
		sums += mm.lazy.areas[i] % 1024;
	}
	EXPECT(n, ==, 0);
	EXPECT(sums, <=, mm.lazy.pages);
}

/*
 * If all pages of an area were used again, a call that can pay for a recount
 * gets its slot.
 */
TEST(lazyfree_slots_that_are_empty_now)
{
	unsigned long i;

	begin(&mm);
	for (i = 0; i < MMP_LAZY_AREAS; i++)
		mmp_lazy_found(&mm.lazy, FIRST + (PAGES + i * MMP_AREA_PAGES) * PAGE_SIZE, 1);
	elsewhere = 0;
	for (i = 0; i < AREAS; i++) {
		mm.lazy.looks = MMP_LAZY_MAX_LOOKS;
		at("area %lu", i);
		EXPECT(call(&mm, i * MMP_AREA_PAGES, 1, PAGES), ==, MMP_ANSWER_LAZY);
	}
	elsewhere = 1;
	EXPECT(truth(&mm), ==, AREAS);
	EXPECT(mm.lazy.pages, >=, AREAS);
}

/*
 * If one area of a set becomes empty, the set's other area stays in the set,
 * and is still recounted.
 */
TEST(lazyfree_another_area_of_the_set_stays)
{
	unsigned long i;

	for (i = 0; i < MMP_LAZY_AREAS; i++) {
		begin(&mm);
		EXPECT(call(&mm, 0, 10, PAGES), ==, MMP_ANSWER_LAZY);
		for (mm.lazy.hand = 0; !mm.lazy.areas[mm.lazy.hand]; mm.lazy.hand++)
			;
		mmp_lazy_found(&mm.lazy, FIRST + (PAGES + i * MMP_AREA_PAGES) * PAGE_SIZE, 1);
		if (mm.lazy.areas[mm.lazy.hand + 1])
			break;
	}
	EXPECT(i, <, MMP_LAZY_AREAS);
	elsewhere = 0;
	EXPECT(mmp_lazy_look_at(&mm.lazy, mm.lazy.hand + 1), ==, true);
	elsewhere = 1;
	EXPECT(mm.lazy.pages, ==, 10);
	memset(mm.page, DIRTY, 10);
	mm.lazy.looks = MMP_LAZY_MAX_LOOKS;
	EXPECT(call(&mm, 5 * MMP_AREA_PAGES, 1, 10), ==, MMP_ANSWER_LAZY);
}

/* A call earns 16 page table reads for each page that it frees; unused ones are kept. */
TEST(lazyfree_each_page_pays_for_sixteen_looks)
{
	begin(&mm);
	EXPECT(call(&mm, 0, 100, PAGES), ==, MMP_ANSWER_LAZY);
	EXPECT(mm.lazy.looks, ==, 1600);
	EXPECT(call(&mm, 100, 7, PAGES), ==, MMP_ANSWER_LAZY);
	EXPECT(mm.lazy.looks, ==, 1712);
	EXPECT(call(&mm, 0, PAGES, 2 * PAGES), ==, MMP_ANSWER_LAZY);
	EXPECT(mm.lazy.looks, ==, 20 * MMP_AREA_PAGES);
}

/* If the set of an area has a free slot, no area is recounted for it. */
TEST(lazyfree_a_free_slot_costs_no_looks)
{
	const struct mmp_lazy_count one = { .pages = 1, .in = { 1 } };
	const struct mmp_lazy_limit limit = { PAGES, false };
	unsigned long area;

	for (area = 0; area < MMP_LAZY_SETS; area++) {
		const struct mmp_lazy_call call = {
			area * MMP_AREA_SIZE, area * MMP_AREA_SIZE + PAGE_SIZE, 1
		};

		begin(&mm);
		mm.lazy.looks = MMP_LAZY_MAX_LOOKS - MMP_LAZY_LOOKS;
		at("area %lu", area);
		EXPECT(mmp_lazy_ask(&mm.lazy, &call, &one, limit), ==, MMP_ANSWER_LAZY);
		EXPECT(mm.lazy.looks, ==, MMP_LAZY_MAX_LOOKS);
	}
}

/* An area is recounted only if more reads are left than it has entries. */
TEST(lazyfree_a_look_needs_its_price_and_more)
{
	unsigned long looks;

	for (looks = 511; looks < 514; looks++) {
		begin(&mm);
		EXPECT(call(&mm, 0, 100, 200), ==, MMP_ANSWER_LAZY);
		mm.lazy.looks = looks - 16;
		mm.counted = 0;
		at("%lu looks", looks);
		EXPECT(ask(&mm, 1, MMP_AREA_PAGES, 1, 100, false), ==, MMP_ANSWER_LIMIT);
		EXPECT(mm.counted, ==, looks > 512);
	}
}

/* The table holds areas of 7 GB in total. */
TEST(lazyfree_knows_7_gb_of_areas)
{
	unsigned long i, n = 0;

	begin(&mm);
	for (i = 0; i < 16 * MMP_LAZY_AREAS; i++)
		mmp_lazy_found(&mm.lazy, FIRST + PAGES * PAGE_SIZE + i * MMP_AREA_SIZE, 1);
	for (i = 0; i < MMP_LAZY_AREAS; i++)
		n += mm.lazy.areas[i] % 1024;
	EXPECT(n * MMP_AREA_SIZE, ==, 7UL << 30);
}

/*
 * mmp_lazy_recount() keeps to its budget, continues where it ended, and counts
 * each area once.
 */
TEST(lazyfree_recount_in_pieces)
{
	static const unsigned int budgets[] = { 1, 7, 16, AREAS, AREAS + 1, MMP_LAZY_AREAS };
	unsigned int i, index, left, calls;
	unsigned long a;

	for (i = 0; i < ARRAY_SIZE(budgets); i++) {
		begin(&mm);
		for (a = 0; a < AREAS; a++)
			EXPECT(call(&mm, a * MMP_AREA_PAGES, 2, PAGES), ==, MMP_ANSWER_LAZY);
		all_ended = true;
		/* One of the two pages of each area is used again, without a call. */
		for (a = 0; a < AREAS; a++)
			mm.page[a * MMP_AREA_PAGES] = DIRTY;
		EXPECT(mm.lazy.pages, ==, 2 * AREAS);
		mm.counted = 0;
		at("%u at once", budgets[i]);
		for (index = 0, calls = 0; index < MMP_LAZY_AREAS; calls++) {
			unsigned long before = mm.counted;

			left = budgets[i];
			index = mmp_lazy_recount(&mm.lazy, index, &left);
			EXPECT(mm.counted - before, ==, budgets[i] - left);
			EXPECT(calls, <=, AREAS);
		}
		EXPECT(mm.counted, ==, AREAS);
		EXPECT(mm.lazy.pages, ==, AREAS);
		EXPECT(calls, <=, AREAS / budgets[i] + 1);
	}
}

/* mmp_lazy_recount() counts nothing without a budget, or without areas. */
TEST(lazyfree_recount_of_nothing)
{
	unsigned int left = 0;

	begin(&mm);
	EXPECT(call(&mm, 0, 1, PAGES), ==, MMP_ANSWER_LAZY);
	mm.counted = 0;
	EXPECT(mmp_lazy_recount(&mm.lazy, 3, &left), ==, 3);
	begin(&mm);
	left = 5;
	EXPECT(mmp_lazy_recount(&mm.lazy, 0, &left), ==, MMP_LAZY_AREAS);
	EXPECT(left, ==, 5);
	EXPECT(mm.counted, ==, 0);
}

/* Stubs: the policies run without tracked processes here. */
static struct mmp_lazy_limit asked;
static unsigned int available;

unsigned int mmp_available(const struct vm_area_struct *vma, unsigned int enough,
			   unsigned long *pages)
{
	EXPECT(*pages, ==, 0);	/* cap requests no pages */
	return enough ? available : MMP_ALL;
}

enum mmp_lazy_answer mmp_tracked_ask(struct vm_area_struct *vma, unsigned long start,
			      unsigned long end, struct mmp_lazy_limit limit)
{
	asked = limit;
	return MMP_ANSWER_LAZY;
}

TEST(madv_free_eager_is_eager)
{
	EXPECT(mmp_policy_madv_free_eager.madv_free(NULL, 0, PAGE_SIZE, NULL), ==, MMP_ANSWER_EAGER);
}

TEST(madv_free_cap_by_examples)
{
	const struct mmp_policy *cap = &mmp_policy_madv_free_cap;
	struct vm_area_struct vma = {};
	static const u32 knob[] = { 3, 1, 5 }, largest[] = { 1 << 20, 0, 0 };

	available = 49;
	EXPECT(cap->madv_free(&vma, 0, PAGE_SIZE, knob), ==, MMP_ANSWER_MEMORY);
	available = 50;
	EXPECT(cap->madv_free(&vma, 0, PAGE_SIZE, knob), ==, MMP_ANSWER_LAZY);
	EXPECT(asked.pages, ==, 768);
	EXPECT(asked.shared, ==, 1);
	available = 0;
	EXPECT(cap->madv_free(&vma, 0, PAGE_SIZE, largest), ==, MMP_ANSWER_LAZY);
	EXPECT(asked.pages, ==, 1UL << 28);
	EXPECT(asked.shared, ==, 0);
}
