/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A histogram of times: eight buckets of equal width per octave (factor of 2), so a time is known
 * to within 1/8.
 */
#ifndef MMPOLICY_OCTAVES_H
#define MMPOLICY_OCTAVES_H

#include <linux/bits.h>
#include <linux/log2.h>
#include <linux/minmax.h>

#define MMP_FIRST_OCTAVE	7	/* log2 of ns; its first bucket also counts shorter times */
#define MMP_LAST_OCTAVE		31	/* log2 of ns; its last bucket also counts longer times */
#define MMP_OCTAVE_BITS		3	/* log2 of the buckets per octave */
#define MMP_OCTAVE		BIT(MMP_OCTAVE_BITS)
#define MMP_BUCKETS		((MMP_LAST_OCTAVE - MMP_FIRST_OCTAVE + 1) * MMP_OCTAVE)

/**
 * mmp_bucket - bucket of a time
 * @ns: the time
 *
 * Return: a number below %MMP_BUCKETS.
 */
static inline unsigned int mmp_bucket(u64 ns)
{
	u64 inside = clamp(ns, BIT_ULL(MMP_FIRST_OCTAVE), BIT_ULL(MMP_LAST_OCTAVE + 1) - 1);
	unsigned int octave = ilog2(inside);
	unsigned int leading = inside >> (octave - MMP_OCTAVE_BITS);	/* 8 to 15 */

	return (octave - MMP_FIRST_OCTAVE) * MMP_OCTAVE + leading - MMP_OCTAVE;
}

#endif /* MMPOLICY_OCTAVES_H */
