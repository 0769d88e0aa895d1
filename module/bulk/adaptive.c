// SPDX-License-Identifier: GPL-2.0
/*
 * bulk/adaptive: finds by trial how many pages a page_pool should request per
 * refill, so that a page costs the least time.
 *
 * Each CPU does hill climbing: it compares its current size with the next
 * smaller or larger one, and moves to the size with the lower cost per page. A
 * comparison consists of pairs of blocks. A block is a run of refills of one
 * size, and the two blocks of a pair use the two sizes in random order. Pairs
 * are needed because the cost of a page depends on the moment: if the per-CPU
 * free list happens to be empty, that refill pays for filling it. The CPU sums
 * the differences of the pairs until the sum exceeds noise, by a
 * self-normalised t-test (de la Pena, Lai and Shao, "Self-Normalized
 * Processes", 2009). The test needs no estimate of the noise, and a single
 * outlier, such as an interrupt, cannot decide it.
 *
 * Of two sizes with equal cost the smaller one wins, as it leaves fewer pages
 * unused.
 */
#include <linux/bits.h>
#include <linux/minmax.h>
#include <linux/percpu.h>
#include <linux/string.h>
#include <linux/topology.h>

#include "../mmpolicy.h"

/* a block (a run of timed refills of one size) ends at this many pages */
#define BLOCK_PAGES	128
/* a block of timed refills also ends at this many refills */
#define BLOCK_REFILLS	16
/* refills in a row that are not timed, while no two sizes are being compared */
#define NAP		256
/*
 * least and greatest value of @rest when a rest (the time between two
 * comparisons of sizes) begins; it lasts one block more, and NAP untimed
 * refills precede each block
 */
#define MIN_REST	1
#define MAX_REST	4
/* most pairs of blocks that compare two sizes before a rest */
#define SESSION_PAIRS	128
/* no decision between two sizes before this many pairs of blocks */
#define MIN_PAIRS	10
/*
 * at this many pairs of blocks, the sums of their cost differences are halved,
 * so older pairs weigh less
 */
#define MAX_PAIRS	256
/*
 * the summed difference of two sizes is sure beyond 3 standard errors; this is
 * 3 squared
 */
#define SURE		9
#define GAIN_SHIFT	7	/* a gain below 1/128 of the cost is ignored */
#define COST_SHIFT	4	/* a cost is in 1/16 tick per page */
#define MAX_COST	BIT_ULL(18)

static const u8 sizes[] = { 1, 8, 16, 32, 64, 128 };

/* index in sizes[] of the first size used: 64 pages, as stock */
#define START	4

enum { MAX_SIZE };

static struct mmp_knob knobs[] = {
	[MAX_SIZE] = MMP_KNOB(max_pages, 1, 128, 128, "pages",
			      "the most pages that a refill requests"),
};

/**
 * struct trial - comparison of two neighbouring sizes
 * @sum: sum over pairs: cost per page at the larger size minus cost at the
 *	smaller
 * @squares: sum of the squared differences
 * @pairs: number of pairs
 */
struct trial {
	s64 sum;
	u64 squares;
	u32 pairs;
};

/**
 * struct climb - search for the best size on one CPU, for near or for far
 * memory
 * @size: current size, index into sizes[]
 * @other: size compared with @size; equal to @size during a rest
 * @trying: the current block uses @other
 * @second: the current block is the second one of its pair
 * @up: @other is or was larger than @size
 * @session: pairs of blocks since the last rest
 * @rest: further blocks at rest after the current one
 * @patience: value of @rest when the last rest began
 * @nap: untimed refills until the next timed one
 * @refills: refills in the current block
 * @wanted: pages requested in the current block
 * @pages: pages received in the current block
 * @seed: state of the random numbers that order the blocks of a pair
 * @ticks: ticks spent in the refills of the current block
 * @usual: running median of the cost of a block at @size
 * @first: cost of the first block of the current pair
 * @trials: comparisons of each size with the next larger one
 */
struct climb {
	u8 size, other;
	bool trying, second, up;
	u16 session, rest, patience, nap;
	u32 refills, wanted, pages, seed;
	u64 ticks;
	s64 usual, first;
	struct trial trials[ARRAY_SIZE(sizes) - 1];
};

/* Index 0: memory of the local node; index 1: memory of remote nodes. */
static DEFINE_PER_CPU(struct climb[2], climbs) = {
	[0 ... 1] = { .size = START, .other = START, .rest = MIN_REST },
};

static struct climb *bulk_climb_of(int nid)
{
	bool far = nid != NUMA_NO_NODE && nid != numa_mem_id();

	return &(*this_cpu_ptr(&climbs))[far];
}

/*
 * Moves c->usual, the running median of a block's cost, one step towards @cost.
 */
static void bulk_follow(struct climb *c, s64 cost)
{
	s64 step = c->usual / 16 + 1;

	c->usual += cost > c->usual ? step : -step;
}

static void bulk_begin_pair(struct climb *c)
{
	c->seed = c->seed * 1664525 + 1013904223;
	c->trying = c->seed >> 31;
	c->second = false;
}

static void bulk_compare(struct climb *c, bool up)
{
	c->up = !c->size || (up && c->size < ARRAY_SIZE(sizes) - 1);
	c->other = c->up ? c->size + 1 : c->size - 1;
	c->session = 0;
	c->nap = 0;
	bulk_begin_pair(c);
}

static void bulk_take_rest(struct climb *c)
{
	c->other = c->size;
	c->trying = false;
	c->patience = clamp(2 * c->patience, MIN_REST, MAX_REST);
	c->rest = c->patience;
	c->nap = NAP;
}

/*
 * Drops the results of all comparisons of sizes, because the load has changed.
 */
static void bulk_forget(struct climb *c)
{
	memset(c->trials, 0, sizeof(c->trials));
	c->patience = 0;
}

static void bulk_settle(struct climb *c, s64 more)
{
	c->size = c->other;
	c->usual = max(c->usual + more, (s64)1);
	c->patience = 0;
	bulk_compare(c, c->up);
}

/*
 * Returns true if the cost difference of two sizes exceeds noise, or if noise
 * is too small to hide a useful difference.
 */
static bool bulk_is_sure(const struct trial *trial, s64 least)
{
	u64 chance = SURE * trial->squares;

	return trial->pairs >= MIN_PAIRS &&
	       ((u64)(trial->sum * trial->sum) > chance ||
		chance < (u64)(least * least));
}

/*
 * Ends a comparison once its result is sure: moves to the other size if that is
 * cheaper, or smaller and no more expensive, else rests.
 */
static void bulk_judge(struct climb *c)
{
	struct trial *trial = &c->trials[min(c->size, c->other)];
	s64 least = (c->usual * trial->pairs) >> GAIN_SHIFT;
	s64 more = c->up ? trial->sum : -trial->sum;
	s64 mean = more / trial->pairs;

	if (!bulk_is_sure(trial, least)) {
		if (++c->session < SESSION_PAIRS)
			bulk_begin_pair(c);
		else
			bulk_take_rest(c);
		return;
	}
	*trial = (struct trial){};
	if (more < (c->up ? -least : least))
		bulk_settle(c, mean);
	else
		bulk_take_rest(c);
}

static void bulk_add_pair(struct trial *trial, s64 more)
{
	trial->sum += more;
	trial->squares += more * more;
	trial->pairs++;
	if (trial->pairs == MAX_PAIRS) {
		trial->sum /= 2;
		trial->squares /= 2;
		trial->pairs /= 2;
	}
}

static void bulk_pair_block(struct climb *c, s64 cost)
{
	s64 more;

	cost = min(cost, 2 * c->usual);
	if (!c->trying)
		bulk_follow(c, cost);
	if (!c->second) {
		c->first = cost;
		c->second = true;
		c->trying = !c->trying;
		return;
	}
	more = c->trying == c->up ? cost - c->first : c->first - cost;
	bulk_add_pair(&c->trials[min(c->size, c->other)], more);
	bulk_judge(c);
}

static void bulk_rest_block(struct climb *c, s64 cost)
{
	/*
	 * A cost off by a factor of 2 hints at a new load: time all refills, to
	 * end the rest sooner.
	 */
	bool odd = cost > 2 * c->usual || 2 * cost < c->usual;

	c->nap = odd ? 0 : NAP;
	if (c->rest) {
		c->rest--;
		bulk_follow(c, cost);
	} else {
		bulk_compare(c, !c->up);
	}
}

/*
 * Handles a block of timed refills that returned few of the pages requested,
 * because the zone is near its watermark. A larger size cannot help then, and a
 * smaller one costs no more, so this steps down.
 */
static void bulk_short_block(struct climb *c)
{
	bool down = !c->trying && c->size;

	if (down) {
		c->size--;
		bulk_forget(c);
	}
	bulk_take_rest(c);
	if (down)
		c->nap = 0;
}

/*
 * Returns the number of pages that a refill requests. Where softirqs are on,
 * another refill may interrupt this one; the worst effect is a longer pause
 * between timings.
 */
static unsigned int bulk_adaptive(int nid, const u32 *knob, bool *timed)
{
	struct climb *c = bulk_climb_of(nid);
	unsigned int size = sizes[c->trying ? c->other : c->size];

	*timed = !c->nap;
	if (c->nap)
		c->nap--;
	return min(size, knob[MAX_SIZE]);
}

static void bulk_end_block(struct climb *c)
{
	u64 cost = (c->ticks << COST_SHIFT) / max(c->pages, 1U);
	bool is_short = 2 * c->pages < c->wanted;

	cost = min(cost, MAX_COST);
	c->ticks = 0;
	c->wanted = 0;
	c->pages = 0;
	c->refills = 0;
	if (is_short)
		bulk_short_block(c);
	else if (c->other == c->size)
		bulk_rest_block(c, cost);
	else
		bulk_pair_block(c, cost);
}

static void bulk_adaptive_done(int nid, unsigned int want, unsigned int got, u64 ticks)
{
	struct climb *c = bulk_climb_of(nid);

	c->ticks += ticks;
	c->wanted += want;
	c->pages += got;
	c->refills++;
	if (c->pages >= BLOCK_PAGES || c->refills == BLOCK_REFILLS)
		bulk_end_block(c);
}

struct mmp_policy mmp_policy_bulk_adaptive = {
	.name = "adaptive",
	.point = MM_POLICY_BULK,
	.knobs = knobs,
	.nr_knobs = ARRAY_SIZE(knobs),
	.bulk_pages = bulk_adaptive,
	.bulk_done = bulk_adaptive_done,
};
