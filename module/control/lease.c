// SPDX-License-Identifier: GPL-2.0
/*
 * The lease: a time limit on all settings. Unless user space renews the lease
 * in time, the module returns everything to stock (reset.c).
 */
#include <linux/cleanup.h>
#include <linux/jiffies.h>
#include <linux/mutex.h>
#include <linux/workqueue.h>

#include "control.h"

#define MIN_MS		100
#define MAX_MS		(24 * 60 * 60 * 1000)

/*
 * Workqueue of the worker that returns everything to stock when the lease expires. It has a rescuer
 * thread, as there may be no memory for a new worker.
 */
static struct workqueue_struct *queue;
static void (*lease_on_expiry)(unsigned int ms);

/* protects the lease; separate from mmp_lock, so a renewal waits for no other writer */
static DEFINE_MUTEX(lease_lock);
static unsigned int lease_ms;		/* under lease_lock */
static u64 deadline;			/* in jiffies; under lease_lock */

/*
 * Runs when the timer of the lease fires, and returns everything to stock. Does nothing if a
 * renewal has extended the lease while this worker waited for the lock.
 */
static void lease_expire(struct work_struct *work)
{
	unsigned int ms;

	guard(mutex)(&lease_lock);
	if (!lease_ms || time_before64(get_jiffies_64(), deadline))
		return;
	ms = lease_ms;
	WRITE_ONCE(lease_ms, 0);
	lease_on_expiry(ms);
}

/*
 * The timer of the lease is not deferrable, so an expiry wakes up an idle CPU.
 */
static DECLARE_DELAYED_WORK(expiry, lease_expire);

/**
 * mmp_lease_init - create the workqueue of the lease
 * @on_expiry: called on expiry with the length of the lease in ms; must refuse later writes
 *
 * Return: 0 or -ENOMEM.
 */
int mmp_lease_init(void (*on_expiry)(unsigned int ms))
{
	lease_on_expiry = on_expiry;
	queue = alloc_workqueue("mmpolicy", WQ_MEM_RECLAIM | WQ_HIGHPRI | WQ_UNBOUND, 0);
	return queue ? 0 : -ENOMEM;
}

/*
 * Ends the lease at unload, and waits for an expiry in progress. The files of
 * the lease must be gone, so that no write starts it again.
 */
void mmp_lease_exit(void)
{
	if (!queue)
		return;
	cancel_delayed_work_sync(&expiry);
	destroy_workqueue(queue);
}

/* Starts a lease of @ms milliseconds; 0 ends the lease. The caller holds lease_lock. */
static void lease_set(unsigned int ms)
{
	WRITE_ONCE(lease_ms, ms);
	deadline = get_jiffies_64() + msecs_to_jiffies(ms);
	if (ms)
		mod_delayed_work(queue, &expiry, msecs_to_jiffies(ms));
	else
		cancel_delayed_work(&expiry);
}

/* Ends the lease without returning settings to stock. */
void mmp_lease_clear(void)
{
	guard(mutex)(&lease_lock);
	lease_set(0);
}

static ssize_t lease_ms_show(struct kobject *kobj, struct kobj_attribute *attr,
			     char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(lease_ms));
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
	guard(mutex)(&lease_lock);
	if (mmp_latched())
		return -EBUSY;
	lease_set(value);
	return count;
}

static struct kobj_attribute lease_ms_attr = __ATTR_RW(lease_ms);

static ssize_t lease_left_ms_show(struct kobject *kobj,
				  struct kobj_attribute *attr, char *buf)
{
	u64 now = get_jiffies_64();

	guard(mutex)(&lease_lock);
	return sysfs_emit(buf, "%u\n", lease_ms && time_before64(now, deadline) ?
			  jiffies_to_msecs(deadline - now) : 0);
}

static struct kobj_attribute lease_left_ms_attr = __ATTR_RO(lease_left_ms);

const struct attribute *const mmp_lease_files[] = {
	&lease_ms_attr.attr,
	&lease_left_ms_attr.attr,
	NULL
};
