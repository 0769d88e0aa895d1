/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Assigns units (processes or cgroups) to the arms of the running experiment
 * (A/B test).
 *
 * The arm is computed from a keyed hash of the unit, so no assignment is
 * stored, a unit never changes its arm, and experiments with different seeds
 * are independent. SipHash: https://131002.net/siphash/
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
 * struct mmp_units - units that had a fault during an experiment
 * @nr: number of units by arm
 * @full: set if a unit was not recorded because @seen had no free slot
 * @seen: hashes of units, whose last bit is the arm; 0 is a free slot
 */
struct mmp_units {
	atomic_t nr[MMP_ARMS];
	bool full;
	atomic64_t seen[BIT(MMP_UNIT_BITS)];
};

/**
 * struct mmp_experiment - the running experiment, published as a whole
 * @rcu: frees the structure after its last reader
 * @arm: profiles of the arms, or %NULL
 * @seed: seed of the assignment
 * @cgroup: only processes in or below this cgroup take part; 0 for all
 * @level: level of @cgroup in the hierarchy
 * @percent: percentage of units in the arm "treatment"
 * @by_cgroup: units are cgroups, not processes
 * @time_faults: true if the times of faults are counted
 * @units: units that had a fault during the experiment
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

/* The running experiment, or NULL. Only control/experiment.c changes it. */
extern struct mmp_experiment __rcu *mmp_running;

struct mmp_profile *mmp_arm_of(struct task_struct *task);

/**
 * mmp_unit_hash - hash that decides the arm of a unit
 * @seed: seed of the experiment
 * @number: PID of the process, or id of the cgroup
 * @birth: start time of the process, so that a later process with the same PID has another hash;
 *	0 for a cgroup
 *
 * Return: the hash.
 */
static inline u64 mmp_unit_hash(u64 seed, u64 number, u64 birth)
{
	const siphash_key_t key = { { seed, 0x6d6d706f6c696379ULL } };

	return siphash_2u64(number, birth, &key);
}

/**
 * mmp_is_treated - test whether a unit is in the arm "treatment"
 * @hash: mmp_unit_hash() of the unit
 * @percent: percentage of units in this arm; raising it moves no unit out
 *
 * Return: true if the unit is in "treatment".
 */
static inline bool mmp_is_treated(u64 hash, unsigned int percent)
{
	return hash % 10000 < percent * 100;
}

#endif /* MMPOLICY_ARM_H */
