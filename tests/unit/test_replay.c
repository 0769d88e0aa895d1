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

static struct program {
	char name[256];
	char *text;
} programs[MAX_PROGRAMS];

static unsigned int load_programs(void)
{
	static unsigned int nr;
	struct dirent *entry;
	DIR *dir;

	if (nr)
		return nr;
	dir = opendir(RECORDED);
	while (dir && (entry = readdir(dir))) {
		char path[512];

		if (*entry->d_name == '.' || nr == MAX_PROGRAMS)
			continue;
		snprintf(programs[nr].name, sizeof(programs->name), "%s", entry->d_name);
		snprintf(path, sizeof(path), "%s/%s", RECORDED, entry->d_name);
		programs[nr++].text = read_text(path);
	}
	return nr;
}

#define for_each_program(p, i)						\
	for ((i) = 0; (i) < load_programs() && ((p) = &programs[i]); (i)++)

struct cost {
	double faults, peak, looks;
};

static struct cost cost_of(const struct mmp_policy *policy, u32 cap, const struct program *p)
{
	struct cost cost;
	struct sim sim;

	sim_init(&sim, policy);
	sim.knob[MAX_ORDER] = cap;
	sim.mm.elsewhere = 0;
	replay(&sim, p->text);
	cost = (struct cost){ sim.faults, sim.peak, (double)sim.looks / sim.faults };
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

	EXPECT(load_programs(), >=, 10);
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

/* Programs with looser bounds: least share of faults saved, and most memory relative to order 0. */
static const struct {
	const char *name;
	double share, memory;
} exceptions[] = {
	{ "gcc", 0.86, 1.14 },		/* never touches one page of ten */
	{ "go-1.19", 0.90, 1.04 },	/* never touches two pages of 28 */
};

static double bound(const struct program *p, bool memory, double usual)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(exceptions); i++)
		if (!strcmp(p->name, exceptions[i].name))
			return memory ? exceptions[i].memory : exceptions[i].share;
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
		EXPECT(saved, >=, bound(p, false, least.peak < SMALL ? 0.88 : 0.90));
		EXPECT(cost.peak, <=, least.peak * bound(p, true, 1.02));
		EXPECT(cost.peak, <=, most.peak);
		EXPECT(cost.looks, <=, 100);
	}
}

TEST(adaptive_with_huge_pages_bounds_memory)
{
	const struct program *p;
	unsigned int i;

	for_each_program(p, i) {
		struct cost cost = adaptive(9, p);

		at("%s", p->name);
		EXPECT(cost.faults, <=, adaptive(4, p).faults * 1.02);
		EXPECT(cost.peak, <=, never(p).peak * (bound(p, true, 1.02) + 1 / 32.0));
	}
}
