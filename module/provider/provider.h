/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How the kernel comes to ask us: by its hooks (hooks.c), or on a kernel without them
 * by direct ftrace calls on some of its functions (the other files). Either is behind
 * mm_policy_register() and its like, and what is here.
 */
#ifndef MMPOLICY_PROVIDER_H
#define MMPOLICY_PROVIDER_H

#include "../compat.h"

/* Its name, as the file "provider" shows it. */
extern const char *const mmp_provider;

/**
 * mmp_provider_lacks - why a point cannot be had on this kernel
 * @point: which; or %MM_POLICY_ANON_PAGES
 *
 * Context: after mm_policy_register().
 * Return: the reason, or %NULL if the point can be had.
 */
const char *mmp_provider_lacks(enum mm_policy_point point);

/**
 * mmp_provider_hook - get ready to have a point enabled
 * @point: which
 *
 * Context: one call at a time; may sleep.
 * Return: 0; -EOPNOTSUPP if it cannot be had; -EBUSY if somebody else has the place;
 *	-ENOMEM.
 */
int mmp_provider_hook(enum mm_policy_point point);

/**
 * mmp_provider_unhook - end mmp_provider_hook()
 * @point: which; disabled
 *
 * Context: as above.
 */
void mmp_provider_unhook(enum mm_policy_point point);

#endif /* MMPOLICY_PROVIDER_H */
