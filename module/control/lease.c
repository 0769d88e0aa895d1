// SPDX-License-Identifier: GPL-2.0
/*
 * The lease: without a renewal in time the kernel itself goes back to stock.
 *
 * Then the tree is latched: whoever let the lease expire may still be writing,
 * or start anew without knowing, so all writes but the acknowledgment fail.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cleanup.h>
#include <linux/jiffies.h>
#include <linux/printk.h>
#include <linux/workqueue.h>

#include "control.h"

#define MIN_MS		100
#define MAX_MS		(24 * 60 * 60 * 1000)

static void expire(struct work_struct *work);

/* Not deferrable: an idle CPU has to wake up for it. */
static DECLARE_DELAYED_WORK(expiry, expire);

/* Under mmp_lock. */
static unsigned int lease_ms;
static u64 deadline;	/* in jiffies */
static bool expired;

/**
 * mmp_expired - are writes refused because the lease has expired?
 *
 * Context: under mmp_lock.
 */
bool mmp_expired(void)
{
	return expired;
}

/**
 * mmp_lease_clear - no lease from now on
 *
 * Context: under mmp_lock.
 */
void mmp_lease_clear(void)
{
	lease_ms = 0;
	expired = false;
	cancel_delayed_work(&expiry);
}

/* A renewal may have come while this waited for the lock. */
static void expire(struct work_struct *work)
{
	scoped_guard(mutex, &mmp_lock) {
		unsigned int was = lease_ms;

		if (!was || time_before64(get_jiffies_64(), deadline))
			return;
		mmp_all_stock();
		expired = true;
		pr_warn("lease of %u ms expired: all is stock until 1 is written to reset\n",
			was);
	}
	mmp_sysfs_sweep();
}

/* After the last write; the work may have been about to run. */
void mmp_lease_exit(void)
{
	cancel_delayed_work_sync(&expiry);
}

static ssize_t lease_ms_show(struct kobject *kobj, struct kobj_attribute *attr,
			     char *buf)
{
	guard(mutex)(&mmp_lock);
	return sysfs_emit(buf, "%u\n", lease_ms);
}

static ssize_t lease_ms_store(struct kobject *kobj, struct kobj_attribute *attr,
			      const char *buf, size_t count)
{
	u64 value;
	int err = mmp_parse(buf, count, 0, MAX_MS, &value);

	if (err)
		return err;
	if (value && value < MIN_MS)
		return -ERANGE;
	guard(mutex)(&mmp_lock);
	err = mmp_may_change(NULL);
	if (err)
		return err;
	mmp_lease_clear();
	if (value) {
		lease_ms = value;
		deadline = get_jiffies_64() + msecs_to_jiffies(value);
		mod_delayed_work(system_wq, &expiry, msecs_to_jiffies(value));
	}
	return count;
}

static struct kobj_attribute lease_ms_attr = __ATTR_RW(lease_ms);

static ssize_t lease_left_ms_show(struct kobject *kobj,
				  struct kobj_attribute *attr, char *buf)
{
	u64 now = get_jiffies_64();

	guard(mutex)(&mmp_lock);
	return sysfs_emit(buf, "%u\n", lease_ms && time_before64(now, deadline) ?
			  jiffies_to_msecs(deadline - now) : 0);
}

static struct kobj_attribute lease_left_ms_attr = __ATTR_RO(lease_left_ms);

const struct attribute *const mmp_lease_files[] = {
	&lease_ms_attr.attr,
	&lease_left_ms_attr.attr,
	NULL
};
