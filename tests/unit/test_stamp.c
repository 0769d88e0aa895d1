// SPDX-License-Identifier: GPL-2.0
/*
 * Start times of operations: which task gets a slot, which operations are
 * missed, and that each slot can be used again.
 */
#include <linux/log2.h>
#include <linux/mm_types.h>
#include <linux/sched.h>

#include "check.h"
#include "sense/stamp.h"

#define TASKS		1000
#define PLACES		256

u64 sim_ns;
struct task_struct *current;

static struct task_struct task[TASKS];
static struct mmp_stamps stamps;

static void nobody(void)
{
	stamps = (struct mmp_stamps){};
	sim_ns = 1;
	current = &task[0];
}

/* Returns another task that hashes to the slot of task @one. */
static struct task_struct *rival_of(struct task_struct *one)
{
	struct mmp_stamp *place;
	int i;

	current = one;
	place = mmp_stamp_slot(&stamps);
	for (i = 0; i < TASKS; i++) {
		current = &task[i];
		if (current != one && mmp_stamp_slot(&stamps) == place)
			return current;
	}
	return NULL;
}

TEST(a_stamp_is_the_task_s_own)
{
	nobody();
	EXPECT(mmp_stamp_mine(&stamps) == NULL, ==, true);
	EXPECT(mmp_stamp_begin(&stamps, 7), ==, true);
	EXPECT(mmp_stamp_mine(&stamps)->what, ==, 7);
	current = rival_of(&task[0]);
	EXPECT(mmp_stamp_mine(&stamps) == NULL, ==, true);
	EXPECT(mmp_stamp_begin(&stamps, 8), ==, false);
	current = &task[0];
	sim_ns += 1000;
	EXPECT(mmp_stamp_end(mmp_stamp_mine(&stamps)), ==, 1000);
	EXPECT(mmp_stamp_mine(&stamps) == NULL, ==, true);
	current = rival_of(&task[0]);
	EXPECT(mmp_stamp_begin(&stamps, 8), ==, true);
}

TEST(a_task_may_begin_anew)
{
	nobody();
	mmp_stamp_begin(&stamps, 7);
	mmp_stamp_mine(&stamps)->seen = 3;
	sim_ns += 1000;
	EXPECT(mmp_stamp_begin(&stamps, 8), ==, true);
	EXPECT(mmp_stamp_mine(&stamps)->what, ==, 8);
	EXPECT(mmp_stamp_mine(&stamps)->seen, ==, 0);
	sim_ns += 10;
	EXPECT(mmp_stamp_end(mmp_stamp_mine(&stamps)), ==, 10);
}

TEST(what_never_ends_gives_its_place_away)
{
	struct task_struct *rival;

	nobody();
	mmp_stamp_begin(&stamps, 7);
	rival = rival_of(&task[0]);
	current = rival;
	sim_ns += 10 * 1000000000ULL - 1;
	EXPECT(mmp_stamp_begin(&stamps, 8), ==, false);
	sim_ns++;
	EXPECT(mmp_stamp_begin(&stamps, 8), ==, true);
	current = &task[0];
	EXPECT(mmp_stamp_mine(&stamps) == NULL, ==, true);
	current = rival;
	sim_ns += 5;
	EXPECT(mmp_stamp_end(mmp_stamp_mine(&stamps)), ==, 5);
}

/*
 * A thousand tasks exit during an operation; later operations are still timed.
 */
TEST(a_table_full_of_the_dead_recovers)
{
	unsigned int begun = 0;
	int i;

	nobody();
	for (i = 0; i < TASKS; i++) {
		current = &task[i];
		begun += mmp_stamp_begin(&stamps, 0);
	}
	EXPECT(begun, >, PLACES / 2);
	EXPECT(begun, <=, PLACES);
	sim_ns += MMP_STAMP_NS;
	for (i = 0; i < TASKS; i++) {
		current = &task[i];
		EXPECT(mmp_stamp_begin(&stamps, 0), ==, true);
		mmp_stamp_end(mmp_stamp_mine(&stamps));
	}
}
