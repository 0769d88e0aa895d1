// SPDX-License-Identifier: GPL-2.0
/*
 * The way back: all to what is after load, when somebody asks for it, when the
 * lease expires, or when the module goes.
 *
 * After an expiry the tree is latched: whoever let the lease expire may still be
 * writing, or start anew without knowing, so all writes but the acknowledgment
 * fail.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cleanup.h>
#include <linux/printk.h>

#include "control.h"

/* All points to stock first, then the rest. Under mmp_lock. */
static void reset_all(void)
{
	mmp_profiles_to_stock();
	mmp_experiment_clear();
	mmp_unbind_all();
	mmp_lease_clear();
	mmp_latch(false);
}

/**
 * mmp_reset - back to what is after load
 *
 * Context: may sleep; not in a write to a file of a profile.
 */
void mmp_reset(void)
{
	scoped_guard(mutex, &mmp_lock)
		reset_all();
	mmp_profile_files_sweep();
}

/* The same when the lease has run out, unless a renewal came while this waited. */
void mmp_reset_on_expiry(void)
{
	scoped_guard(mutex, &mmp_lock) {
		unsigned int ms = mmp_lease_due();

		if (!ms)
			return;
		reset_all();
		mmp_latch(true);
		pr_warn("lease of %u ms expired: all is stock until 1 is written to reset\n",
			ms);
	}
	mmp_profile_files_sweep();
}
