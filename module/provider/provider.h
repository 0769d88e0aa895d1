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

/*
 * Which build of the kernel this is: a number made of all that the point anon_order
 * relies on, or 0 where it does not rely on any build; and the release that this was
 * tried on, or NULL. Both are constant after mm_policy_register().
 */
extern u64 mmp_fingerprint;
extern const char *mmp_tested;

/**
 * mmp_provider_lacks - why a point cannot be had on this kernel
 * @point: which; or %MM_POLICY_ANON_PAGES
 *
 * Context: after mm_policy_register().
 * Return: the reason, or %NULL if the point can be had.
 */
const char *mmp_provider_lacks(enum mm_policy_point point);

/* A function of the kernel, and the point that hooks it while a policy is chosen there. */
struct mmp_function {
	enum mm_policy_point point;
	const char *name;
};

/**
 * mmp_provider_functions - all functions that are hooked while policies are chosen
 * @nr: set to how many
 *
 * Context: after mm_policy_register(); they stay the same.
 */
const struct mmp_function *mmp_provider_functions(int *nr);

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

/**
 * mmp_provider_orders - which orders the policies of anon_order may answer
 * @orders: a bit for each; more need not be asked for
 *
 * Context: as above; after the policies that answer more are gone, before those that do
 *	are waited for.
 */
void mmp_provider_orders(unsigned long orders);

/**
 * mmp_provider_watch - be told when a point is lost
 * @lost: called from a worker with the point and the reason, when the kernel does not ask
 *	there any more, or somebody else needs the place; has to see that the point is
 *	unhooked. May sleep.
 *
 * Context: once, after mm_policy_register().
 */
void mmp_provider_watch(void (*lost)(enum mm_policy_point point, const char *why));

#endif /* MMPOLICY_PROVIDER_H */
