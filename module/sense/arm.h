/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which arm of the running experiment a unit is in.
 *
 * A keyed hash of what the unit is, so that nothing has to be stored, no unit
 * ever changes its arm, and experiments with different seeds know nothing of
 * each other. SipHash: https://131002.net/siphash/
 */
#ifndef MMPOLICY_ARM_H
#define MMPOLICY_ARM_H

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/rcupdate.h>
#include <linux/siphash.h>
#include <linux/types.h>

struct mmp_profile;
struct task_struct;

#define MMP_UNIT_BITS	16

enum mmp_arm { MMP_CONTROL, MMP_TREATMENT, MMP_ARMS };

/**
 * struct mmp_units - which units have been seen
 * @nr: by arm
 * @full: a unit came that @seen had no slot for
 * @seen: hashes of units, of which the last bit is the arm; 0 is a free slot
 */
struct mmp_units {
	atomic_t nr[MMP_ARMS];
	bool full;
	atomic64_t seen[BIT(MMP_UNIT_BITS)];
};

/**
 * struct mmp_experiment - the experiment that runs, published as a whole
 * @rcu: frees it after the last reader
 * @arm: the profiles, or %NULL
 * @seed: of the assignment
 * @cgroup: only processes at or below it take part; 0 for all
 * @level: of that cgroup in the hierarchy
 * @percent: of the units are treated
 * @by_cgroup: units are cgroups, not processes
 * @time_faults: count how long faults take
 * @units: what has been seen
 */
struct mmp_experiment {
	struct rcu_head rcu;
	struct mmp_profile *arm[MMP_ARMS];
	u64 seed;
	u64 cgroup;
	int level;
	u32 percent;
	bool by_cgroup;
	bool time_faults;
	struct mmp_units *units;
};

/* The one that runs, or NULL. Changed by control/experiment.c alone. */
extern struct mmp_experiment __rcu *mmp_running;

struct mmp_profile *mmp_arm_of(struct task_struct *task);

/**
 * mmp_unit_hash - the number that decides about a unit
 * @seed: of the experiment
 * @number: of the process or the cgroup
 * @birth: when the process began, so that a later one with its number differs
 */
static inline u64 mmp_unit_hash(u64 seed, u64 number, u64 birth)
{
	const siphash_key_t key = { { seed, 0x6d6d706f6c696379ULL } };

	return siphash_2u64(number, birth, &key);
}

/**
 * mmp_is_treated - is a unit in the arm "treatment"?
 * @hash: mmp_unit_hash()
 * @percent: of all units that are; with more, none leaves it
 */
static inline bool mmp_is_treated(u64 hash, unsigned int percent)
{
	return hash % 10000 < percent * 100;
}

#endif /* MMPOLICY_ARM_H */
