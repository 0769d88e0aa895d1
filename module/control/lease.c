// SPDX-License-Identifier: GPL-2.0
/*
 * The lease: without a renewal in time the kernel itself goes back to stock. What
 * that takes, reset.c knows.
 */
#include <linux/cleanup.h>
#include <linux/jiffies.h>
#include <linux/workqueue.h>

#include "control.h"

#define MIN_MS		100
#define MAX_MS		(24 * 60 * 60 * 1000)

static void (*lease_on_expiry)(void);

static void lease_expire(struct work_struct *work)
{
	lease_on_expiry();
}

/* Not deferrable: an idle CPU has to wake up for it. */
static DECLARE_DELAYED_WORK(expiry, lease_expire);

/* Under mmp_lock. */
static unsigned int lease_ms;
static u64 deadline;	/* in jiffies */

/**
 * mmp_lease_init - get ready for a lease
 * @on_expiry: called when the time is over; a renewal may have come meanwhile
 */
void mmp_lease_init(void (*on_expiry)(void))
{
	lease_on_expiry = on_expiry;
}

/* After the last write; the work may have been about to run. */
void mmp_lease_exit(void)
{
	cancel_delayed_work_sync(&expiry);
}

/**
 * mmp_lease_clear - no lease from now on
 *
 * Context: under mmp_lock.
 */
void mmp_lease_clear(void)
{
	lockdep_assert_held(&mmp_lock);
	lease_ms = 0;
	cancel_delayed_work(&expiry);
}

/**
 * mmp_lease_due - has the lease run out?
 *
 * Context: under mmp_lock.
 * Return: how long it was in ms, or 0 if there is none or it has been renewed.
 */
unsigned int mmp_lease_due(void)
{
	lockdep_assert_held(&mmp_lock);
	return time_before64(get_jiffies_64(), deadline) ? 0 : lease_ms;
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
