/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which arm of an experiment a unit is in.
 *
 * A keyed hash of what the unit is, so that nothing has to be stored, no unit
 * ever changes its arm, and experiments with different seeds know nothing of
 * each other. SipHash: https://131002.net/siphash/
 */
#ifndef MMPOLICY_ARM_H
#define MMPOLICY_ARM_H

#include <linux/siphash.h>
#include <linux/types.h>

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
