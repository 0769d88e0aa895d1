/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Random sampling of frequent events. Each CPU chooses at random which of its
 * events are sampled.
 */
#ifndef MMPOLICY_DRAW_H
#define MMPOLICY_DRAW_H

#include <linux/percpu.h>

/**
 * struct mmp_draw - sampling state of one CPU
 * @to_pass: events to skip until the next sampled one
 * @state: state of the random number generator
 */
struct mmp_draw {
	int to_pass;
	u32 state;
};

static noinline void mmp_draw_again(struct mmp_draw __percpu *draw, u32 most)
{
	u32 state = this_cpu_read(draw->state) * 1664525 + 1013904223;

	this_cpu_write(draw->state, state);
	this_cpu_write(draw->to_pass, 1 + (int)(((u64)state * most) >> 32));
}

/**
 * mmp_draw_due - test whether this event is sampled; if so, the caller must
 * call mmp_draw_again()
 * @draw: sampling state of this CPU
 *
 * Return: true if it is sampled.
 */
static __always_inline bool mmp_draw_due(struct mmp_draw __percpu *draw)
{
	return unlikely(this_cpu_dec_return(draw->to_pass) <= 0);
}

#endif /* MMPOLICY_DRAW_H */
