/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How the kernel comes to ask us: by its hooks (hooks.c), or on a kernel without them
 * by direct ftrace calls on some of its functions (the other files). Both have the interface of
 * mm_policy_register() and its kin, and of this header.
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
 * Context: after mm_policy_register(); the list does not change.
 */
const struct mmp_function *mmp_provider_functions(int *nr);

/**
 * mmp_provider_hook - request that a point is hooked
 * @point: the point
 *
 * A worker does it: &mmp_watcher.ready or &mmp_watcher.lost is called in the end. A point
 * that is being unhooked is hooked again afterwards.
 * Context: any; does not wait.
 */
void mmp_provider_hook(enum mm_policy_point point);

/**
 * mmp_provider_unhook - request that a point is unhooked
 * @point: the point; disabled
 *
 * Sizes that only policies have opened are closed at once, a worker does the rest.
 * Context: any; does not wait.
 */
void mmp_provider_unhook(enum mm_policy_point point);

/* Is a point hooked, so that it can be enabled? Context: any. */
bool mmp_provider_hooked(enum mm_policy_point point);

/* Is any point still being unhooked? Context: any. */
bool mmp_provider_detaching(void);

/**
 * mmp_provider_wait_for - wait until a point is hooked, or cannot be
 * @point: which
 * @ms: not longer
 *
 * Context: may sleep; under no lock that a &mmp_watcher takes.
 * Return: 0 if it is hooked or that is undecided yet; -EBUSY if another user has the place;
 *	-EOPNOTSUPP, -ENOMEM; -EINTR if the task is killed.
 */
int mmp_provider_wait_for(enum mm_policy_point point, unsigned int ms);

/* Waits until all requests are met, at most for @ms. Context: as mmp_provider_wait_for(). */
void mmp_provider_wait(unsigned int ms);

/**
 * mmp_provider_blockers - which tasks does hooking or unhooking wait for?
 * @buf: of a page; a line for each
 * Return: how many bytes.
 */
ssize_t mmp_provider_blockers(char *buf);

/**
 * mmp_provider_orders - which orders the policies of anon_order may answer
 * @orders: a bit for each; more need not be asked for
 *
 * Context: does not wait; call it after policies that answer more are gone, and before waiting
 *	for policies that will.
 */
void mmp_provider_orders(unsigned long orders);

/**
 * struct mmp_watcher - is told by a worker; both may sleep
 * @ready: a point is hooked; by now that may be unwanted again
 * @lost: a point and the reason: it cannot be hooked, the kernel has stopped to ask there, or
 *	another user needs the place. Has to request that the point is unhooked.
 */
struct mmp_watcher {
	void (*ready)(enum mm_policy_point point);
	void (*lost)(enum mm_policy_point point, const char *why);
};

/* Before a point is hooked, after mm_policy_register(): @watcher stays valid. */
void mmp_provider_watch(const struct mmp_watcher *watcher);

#endif /* MMPOLICY_PROVIDER_H */
