// SPDX-License-Identifier: GPL-2.0
/* Replays the first touches of recorded programs under each policy: its faults and memory. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "policies.h"
#include "replay.h"

enum { MAX_ORDER };

#define SMALL		10240UL		/* pages: 40 MB */
#define MAX_PROGRAMS	64

struct program {
	char name[256];
	char *text;
};

/* The recordings in one directory: of programs with tens of MB, or with hundreds (large). */
static struct programs {
	const char *path;
	unsigned int nr;
	struct program all[MAX_PROGRAMS];
} programs = { .path = RECORDED }, large_programs = { .path = RECORDED "/large" };

static unsigned int load_programs(struct programs *some)
{
	struct dirent *entry;
	DIR *dir;

	if (some->nr)
		return some->nr;
	dir = opendir(some->path);
	while (dir && (entry = readdir(dir))) {
		struct program *p = &some->all[some->nr];
		char path[512];

		if (*entry->d_name == '.' || !strcmp(entry->d_name, "large") ||
		    some->nr == MAX_PROGRAMS)
			continue;
		snprintf(p->name, sizeof(p->name), "%s", entry->d_name);
		snprintf(path, sizeof(path), "%s/%s", some->path, entry->d_name);
		p->text = read_text(path);
		some->nr++;
	}
	return some->nr;
}

#define for_each_program_of(some, p, i)					\
	for ((i) = 0; (i) < load_programs(&(some)) && ((p) = &(some).all[i]); (i)++)
#define for_each_program(p, i)	for_each_program_of(programs, p, i)

struct cost {
	double faults, peak, looks, huge;
};

static struct cost cost_of(const struct mmp_policy *policy, u32 cap, const struct program *p)
{
	struct cost cost;
	struct sim sim;

	sim_init(&sim, policy);
	sim.knob[MAX_ORDER] = cap;
	sim.mm.elsewhere = 0;
	replay(&sim, p->text);
	cost = (struct cost){ sim.faults, sim.peak, (double)sim.looks / sim.faults,
			      sim.folios[MMP_MAX_ORDER] };
	sim_free(&sim);
	return cost;
}

static struct cost never(const struct program *p)
{
	return cost_of(&mmp_policy_anon_order_never, 0, p);
}

static struct cost fixed(u32 cap, const struct program *p)
{
	return cost_of(&mmp_policy_anon_order_fixed, cap, p);
}

static struct cost adaptive(u32 cap, const struct program *p)
{
	return cost_of(&mmp_policy_anon_order_adaptive, cap, p);
}

/* Each touch of a recording is the first one of its page, so order 0 faults at almost each. */
TEST(recordings_are_of_first_touches)
{
	const struct program *p;
	unsigned int i;

	EXPECT(load_programs(&programs), >=, 10);
	for_each_program(p, i) {
		unsigned long touches = 0;
		char *line;

		for (line = p->text; *line; line = strchr(line, '\n') + 1)
			touches += *line < 'a';
		at("%s", p->name);
		EXPECT(touches, >, 3000);
		EXPECT(never(p).faults, <=, touches);
		EXPECT(never(p).faults, >, touches * 0.98);
	}
}

TEST(every_policy_lives_with_every_program)
{
	const struct program *p;
	struct mmp_policy *policy;
	unsigned int i;
	int n;

	for_each_program(p, i)
		for_each_anon_order(policy, n) {
			struct cost cost = cost_of(policy, 4, p);

			at("%s under %s", p->name, policy->name);
			EXPECT(cost.faults, <=, never(p).faults);
			EXPECT(cost.peak, >=, never(p).peak);
		}
}

/*
 * Programs with looser bounds: least share of faults saved, and most memory relative to order 0,
 * with folios up to 64 kB and up to 2 MB.
 */
enum { SHARE, MEMORY, MEMORY_HUGE, BOUNDS };

static const struct {
	const char *name;
	double bounds[BOUNDS];
} exceptions[] = {
	{ "gcc", { 0.86, 1.14, 1.15 } },	/* never touches one page of ten */
	{ "go-1.19", { 0.90, 1.04, 1.04 } },	/* never touches two pages of 28 */
};

static double bound(const struct program *p, unsigned int which, double usual)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(exceptions); i++)
		if (!strcmp(p->name, exceptions[i].name))
			return exceptions[i].bounds[which];
	return usual;
}

/* adaptive saves most of the faults that 64 kB folios everywhere save, and takes little memory. */
TEST(adaptive_saves_what_large_folios_save)
{
	const struct program *p;
	unsigned int i;

	for_each_program(p, i) {
		struct cost least = never(p), most = fixed(4, p), cost = adaptive(4, p);
		double saved = (least.faults - cost.faults) / (least.faults - most.faults);

		at("%s", p->name);
		EXPECT(saved, >=, bound(p, SHARE, least.peak < SMALL ? 0.88 : 0.90));
		EXPECT(cost.peak, <=, least.peak * bound(p, MEMORY, 1.02));
		EXPECT(cost.peak, <=, most.peak);
		EXPECT(cost.looks, <=, 100);
	}
}

/*
 * With folios up to 2 MB, a program saves more faults. At most one folio is not filled: of 1/32 of
 * its memory, or of 2 MB.
 */
TEST(adaptive_with_huge_pages_bounds_memory)
{
	const struct program *p;
	unsigned int i;

	for_each_program(p, i) {
		struct cost least = never(p), cost = adaptive(9, p);

		at("%s", p->name);
		EXPECT(cost.faults, <=, adaptive(4, p).faults * 1.02);
		EXPECT(cost.peak, <=, least.peak * bound(p, MEMORY_HUGE, 1.02) +
				      max(least.peak / 32, cost.huge ? SIM_TABLE : 0.0));
		if (fixed(4, p).peak <= least.peak * 1.02)
			EXPECT(cost.peak, <=, least.peak * 1.01);
	}
}

/* Requests 2 MB wherever they fit, as a kernel with only this size enabled. */
static struct mmp_decision huge_always(const struct vm_fault *vmf, enum mm_policy_site site,
				       const u32 *knob)
{
	return (struct mmp_decision){ 0, site == MM_POLICY_PMD ? MMP_MAX_ORDER : 0 };
}

static u32 cap_of_huge(const struct vm_area_struct *vma, const u32 *knob)
{
	return MMP_MAX_ORDER;
}

static const struct mmp_policy huge = { .anon_order = huge_always, .cap = cap_of_huge };

/*
 * The least number of 2 MB pages, relative to a kernel that gives them wherever they fit, and the
 * most memory, relative to order 0. The first 2 MB that an allocator maps beside other memory begin
 * with small folios. These are all programs of "./dev bench kept --hooks --record" but gather,
 * whose arrays ask for huge pages by themselves, pandas, and compilers.
 */
static const struct {
	const char *name;
	double share, memory;
} large[] = {
	{ "chdb", 0.78, 1.03 },
	{ "duckdb", 0.78, 1.02 },
	{ "go", 0.81, 1.02 },
	{ "java", 0.83, 1.01 },
	{ "node", 0.5, 1.01 },			/* has 11 */
	{ "polars", 0.75, 1.03 },
	{ "postgres-hash", 0.78, 1.01 },
	{ "postgres-sort", 0.69, 1.02 },
	{ "python", 0.3, 1.01 },		/* has 3 */
	{ "redis", 0.58, 1.04 },
};

/* Programs with hundreds of MB keep most of what 64 kB save, in 1 % more memory, and get 2 MB. */
TEST(large_programs_get_2_mb_soon)
{
	const struct program *p;
	unsigned int i, j;

	EXPECT(load_programs(&large_programs), ==, ARRAY_SIZE(large));
	for_each_program_of(large_programs, p, i) {
		struct cost least = never(p), most = fixed(4, p), cost = adaptive(4, p);

		at("%s", p->name);
		EXPECT(least.faults - cost.faults, >=, 0.92 * (least.faults - most.faults));
		EXPECT(cost.peak, <=, least.peak * 1.01);
		cost = adaptive(9, p);
		for (j = 0; j < ARRAY_SIZE(large) && strcmp(p->name, large[j].name); j++)
			;
		if (j == ARRAY_SIZE(large))
			abort();
		EXPECT(cost.huge, >=, large[j].share * cost_of(&huge, 9, p).huge);
		EXPECT(cost.peak, <=, least.peak * large[j].memory);
	}
}
