/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How the kernel calls the module: through the mm_policy hooks (hooks.c), or on
 * a kernel without them through direct ftrace calls from some of its functions
 * (the other files). Both implement mm_policy_register() and its relatives, and
 * this header.
 */
#ifndef MMPOLICY_PROVIDER_H
#define MMPOLICY_PROVIDER_H

#include "../compat.h"

/* Name of the provider, "ftrace" or "hooks", for the sysfs file "provider". */
extern const char *const mmp_provider;

/*
 * mmp_fingerprint: a hash of the kernel code that the point anon_order relies
 * on; 0 if it relies on none. mmp_tested: a release with this hash on which the
 * module was tested, or NULL. Both are constant after mm_policy_register().
 */
extern u64 mmp_fingerprint;
extern const char *mmp_tested;

/**
 * mmp_provider_lacks - find why a point is unavailable on this kernel
 * @point: the point; or %MM_POLICY_ANON_PAGES
 *
 * Context: after mm_policy_register().
 * Return: the reason, or %NULL if the point is available.
 */
const char *mmp_provider_lacks(enum mm_policy_point point);

/*
 * A kernel function that is hooked while a profile has a policy at this point.
 */
struct mmp_function {
	enum mm_policy_point point;
	const char *name;
};

/**
 * mmp_provider_functions - list all functions that are hooked while policies
 * are in use
 * @nr: set to the number of functions
 *
 * Context: after mm_policy_register(); the list does not change.
 */
const struct mmp_function *mmp_provider_functions(int *nr);

/**
 * mmp_provider_hook - request that the hooks of a point are attached
 * @point: the point
 *
 * A worker attaches them, and then calls &mmp_watcher.ready or
 * &mmp_watcher.lost. Hooks that are being detached are attached again
 * afterwards.
 * Context: any; does not wait.
 */
void mmp_provider_hook(enum mm_policy_point point);

/**
 * mmp_provider_unhook - request that the hooks of a point are detached
 * @point: the point, which must be disabled
 *
 * Sizes that only policies have enabled are disabled at once; a worker does the
 * rest.
 * Context: any; does not wait.
 */
void mmp_provider_unhook(enum mm_policy_point point);

/*
 * Returns true if the hooks of a point are attached, so that the point can be
 * enabled. Context: any.
 */
bool mmp_provider_hooked(enum mm_policy_point point);

/*
 * Returns true if the hooks of any point are still being detached. Context:
 * any.
 */
bool mmp_provider_detaching(void);

/**
 * mmp_provider_wait_for - wait until the hooks of a point are attached, or
 * cannot be
 * @point: the point
 * @ms: longest time to wait, in ms
 *
 * Context: may sleep; under no lock that a &mmp_watcher takes.
 * Return: 0 if the hooks are attached or this is undecided yet; -EBUSY if
 * another user of ftrace has the functions; -EOPNOTSUPP, -ENOMEM; -EINTR if the
 * task is killed.
 */
int mmp_provider_wait_for(enum mm_policy_point point, unsigned int ms);

/*
 * Waits at most @ms milliseconds until all requested hooks are attached or
 * detached. Context: as for mmp_provider_wait_for().
 */
void mmp_provider_wait(unsigned int ms);

/**
 * mmp_provider_blockers - print the tasks that attaching or detaching waits for
 * @buf: buffer of one page; gets one line per task
 *
 * Return: number of bytes.
 */
ssize_t mmp_provider_blockers(char *buf);

/**
 * mmp_provider_orders - set the orders that policies of anon_order may request
 * @orders: bitmap of orders; the kernel need not ask for others
 *
 * Context: does not wait. To drop orders, call it after the policies that
 * request them have gone; to add orders, before waiting for such policies.
 */
void mmp_provider_orders(unsigned long orders);

/**
 * struct mmp_watcher - callbacks of the worker that attaches hooks; both may
 * sleep
 * @ready: the hooks of a point are attached; they may be unwanted again by now
 * @lost: the hooks of a point cannot be attached, the kernel no longer calls
 *	them, or another user of ftrace needs the functions. Must request
 *	that the hooks are detached.
 */
struct mmp_watcher {
	void (*ready)(enum mm_policy_point point);
	void (*lost)(enum mm_policy_point point, const char *why);
};

/*
 * Sets the callbacks. Called after mm_policy_register() and before any hook is
 * attached; @watcher must stay valid.
 */
void mmp_provider_watch(const struct mmp_watcher *watcher);

#endif /* MMPOLICY_PROVIDER_H */
