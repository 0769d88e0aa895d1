// SPDX-License-Identifier: GPL-2.0
/*
 * All settings of the module, and the index of each value in struct
 * mmp_settings.
 */
#include <linux/overflow.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "../sense/fault_time.h"
#include "control.h"

const struct mmp_parts *mmp_parts;
/*
 * The stock settings: all points at stock, all knobs at their defaults.
 * Profiles share them until they change something; unload frees them.
 */
struct mmp_settings *mmp_stock;
static unsigned int nr_slots;

static void settings_place_knobs(struct mmp_knob *knobs, unsigned int nr)
{
	while (nr--)
		(knobs++)->slot = nr_slots++;
}

/*
 * Assigns each knob its index in mmp_settings.values, and each counter its index in the counters of
 * a profile.
 */
static void settings_place_all(void)
{
	struct mmp_policy *policy;
	int i;

	/*
	 * The counters of anon_order (point 0) must come first, as its code finds them without an
	 * offset.
	 */
	for (i = 0; i < MM_POLICY_POINTS; i++) {
		struct mmp_point *point = mmp_parts->points[i];

		settings_place_knobs(point->knobs, point->nr_knobs);
		point->first_counter = mmp_nr_counters;
		mmp_nr_counters += point->nr_counters;
	}
	for_each_policy(policy, i) {
		policy->slot = nr_slots;
		settings_place_knobs(policy->knobs, policy->nr_knobs ?: policy->max_knobs);
	}
}

static void settings_default_knobs(struct mmp_settings *settings, const struct mmp_knob *knob,
				   unsigned int nr)
{
	for (; nr--; knob++)
		settings->values[knob->slot] = knob->def;
}

/**
 * mmp_settings_default - set the knobs of a policy to their defaults
 * @settings: the settings; they may already be published, as long as no profile
 *	has the policy and its knobs have no files
 * @policy: the policy
 */
void mmp_settings_default(struct mmp_settings *settings, const struct mmp_policy *policy)
{
	settings_default_knobs(settings, policy->knobs, policy->nr_knobs);
}

static void settings_default_all(void)
{
	const struct mmp_policy *policy;
	int i;

	for (i = 0; i < MM_POLICY_POINTS; i++)
		settings_default_knobs(mmp_stock, mmp_parts->points[i]->knobs,
				       mmp_parts->points[i]->nr_knobs);
	for_each_policy(policy, i)
		mmp_settings_default(mmp_stock, policy);
}

/**
 * mmp_settings_init - number all knobs and counters, and build the stock settings
 * @parts: points and policies; stays valid
 *
 * Return: 0 or -ENOMEM.
 */
int mmp_settings_init(const struct mmp_parts *parts)
{
	mmp_parts = parts;
	settings_place_all();
	mmp_stock = kzalloc(struct_size(mmp_stock, values, nr_slots), GFP_KERNEL);
	if (!mmp_stock)
		return -ENOMEM;
	settings_default_all();
	return 0;
}

/* Frees the stock settings at unload, when no profile uses them. */
void mmp_settings_exit(void)
{
	kfree(mmp_stock);
}

/**
 * mmp_settings_copy - copy settings, to change the copy and publish it
 * @old: the original
 *
 * Return: the copy, or %NULL.
 */
struct mmp_settings *mmp_settings_copy(const struct mmp_settings *old)
{
	return kmemdup(old, struct_size(old, values, nr_slots), GFP_KERNEL);
}

/**
 * mmp_policy_find - find a policy by name
 * @point: its point
 * @name: its name; not "stock", which is %NULL
 *
 * Return: the policy, or %NULL.
 */
const struct mmp_policy *mmp_policy_find(enum mm_policy_point point,
					 const char *name)
{
	const struct mmp_policy *policy;
	int i;

	for_each_policy(policy, i)
		if (policy->point == point && *policy->name && sysfs_streq(name, policy->name))
			return policy;
	return NULL;
}
