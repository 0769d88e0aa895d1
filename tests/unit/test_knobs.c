// SPDX-License-Identifier: GPL-2.0
/* Requirements for every policy, including later ones. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "sim.h"
#include "policies.h"

static bool is_name(const char *name)
{
	if (!name || !islower(*name))
		return false;
	for (; *name; name++)
		if (!islower(*name) && !isdigit(*name) && *name != '_')
			return false;
	return true;
}

/* Returns true if a text fits into one line of a sysfs file and of a table: 1 to 79 characters. */
static bool is_line(const char *text)
{
	return text && *text && strlen(text) < 80 && !strchr(text, '\n');
}

TEST(policies_have_proper_names)
{
	const struct mmp_policy *policy;
	int i, j;

	for_each_tested(policy, i) {
		at("policy %s", policy->name);
		EXPECT(is_name(policy->name), ==, true);
		EXPECT(!strcmp(policy->name, policies[i].name), ==, true);
		EXPECT(!strcmp(policy->name, "stock"), ==, false);
		EXPECT(policy->point, ==, policies[i].point);
		for (j = 0; j < i; j++)
			EXPECT(policies[j].point == policy->point &&
			       !strcmp(policy->name, policies[j].name), ==, false);
	}
}

/* module/policies.h lists each file with a policy; others would not be part of the module. */
TEST(policies_are_listed)
{
	static const char *const listed[] = {
#define MMP_POLICY(point, name)	#point "/" #name,
#include "../../module/policies.h"
#undef MMP_POLICY
	};
	int i;

	EXPECT(ARRAY_SIZE(listed), ==, ARRAY_SIZE(policies));
	for (i = 0; i < (int)ARRAY_SIZE(policies); i++) {
		bool found = false;
		unsigned int k;

		at("policy %s", policies[i].path);
		for (k = 0; k < ARRAY_SIZE(listed); k++)
			found |= !strcmp(listed[k], policies[i].path);
		EXPECT(found, ==, true);
	}
}

TEST(knobs_have_proper_bounds)
{
	const struct mmp_policy *policy;
	unsigned int k;
	int i;

	for_each_tested(policy, i) {
		EXPECT(policy->nr_knobs, <=, SIM_KNOBS);
		for (k = 0; k < policy->nr_knobs; k++) {
			const struct mmp_knob *knob = &policy->knobs[k];

			at("%s/%s", policy->name, knob->attr.name);
			EXPECT(knob->min, <=, knob->def);
			EXPECT(knob->def, <=, knob->max);
			EXPECT(knob->min, <, knob->max);
			EXPECT(knob->attr.mode, ==, 0644);
			EXPECT(is_line(knob->unit), ==, true);
			EXPECT(is_line(knob->meaning), ==, true);
		}
	}
}

static const struct documented {
	const char *path;
	u32 min, max, def;
	const char *unit;
} documented[] = {
#define KNOB(path, min, max, def, unit)	{ path, min, max, def, unit },
#include "knobs.inc"
#undef KNOB
};

static const struct documented *document_of(const char *policy, const char *knob)
{
	char path[128];
	unsigned int i;

	snprintf(path, sizeof(path), "%s/%s", policy, knob);
	for (i = 0; i < ARRAY_SIZE(documented); i++)
		if (!strcmp(documented[i].path, path))
			return &documented[i];
	return NULL;
}

TEST(knobs_are_as_documented)
{
	const struct mmp_policy *policy;
	unsigned int k, nr = 0;
	int i;

	for_each_tested(policy, i)
		for (k = 0; k < policy->nr_knobs; k++, nr++) {
			const struct mmp_knob *knob = &policy->knobs[k];
			const struct documented *is = document_of(policies[i].path, knob->attr.name);

			at("%s/%s", policies[i].path, knob->attr.name);
			EXPECT(!is, ==, false);
			if (!is)
				continue;
			EXPECT(knob->min, ==, is->min);
			EXPECT(knob->max, ==, is->max);
			EXPECT(knob->def, ==, is->def);
			EXPECT(strcmp(knob->unit, is->unit), ==, 0);
		}
	EXPECT(nr, ==, ARRAY_SIZE(documented));
}

TEST(knobs_have_proper_names)
{
	const struct mmp_policy *policy;
	unsigned int k, other;
	int i;

	for_each_tested(policy, i)
		for (k = 0; k < policy->nr_knobs; k++) {
			const char *name = policy->knobs[k].attr.name;

			at("%s/%s", policy->name, name);
			EXPECT(is_name(name), ==, true);
			EXPECT(!strcmp(name, "policy"), ==, false);
			for (other = 0; other < k; other++)
				EXPECT(strcmp(name, policy->knobs[other].attr.name), !=, 0);
		}
}

/* Knob 0 must be an order, because it bounds the sizes to which khugepaged may collapse. */
TEST(knob_0_is_an_order)
{
	const struct mmp_policy *policy;
	int i;

	for_each_anon_order(policy, i) {
		at("policy %s", policy->name);
		if (policy->nr_knobs)
			EXPECT(policy->knobs[0].max, <=, MMP_MAX_ORDER);
	}
}
