// SPDX-License-Identifier: GPL-2.0
/*
 * The sysfs files "cgroups" and "pids" of a profile, which list and change the
 * cgroups and processes that are bound to it.
 */
#include <linux/cleanup.h>
#include <linux/pid.h>
#include <linux/string.h>

#include "control.h"

#define LONGEST_LINE	sizeof("18446744073709551615\n")

/**
 * struct binding_file - a sysfs file that lists bindings
 * @attr: the file
 * @bind: called if a number is written
 * @unbind: called if a number with a minus sign is written
 * @shown: returns the number that the file shows for a binding; 0 hides it
 */
struct binding_file {
	struct bin_attribute attr;
	int (*bind)(struct mmp_profile *profile, u64 number);
	int (*unbind)(const struct mmp_profile *profile, u64 number);
	u64 (*shown)(const struct mmp_binding *b);
};

static const struct binding_file *binding_file_of(const struct bin_attribute *attr)
{
	return container_of(attr, struct binding_file, attr);
}

static ssize_t binding_write(struct file *file, struct kobject *kobj,
			     MMP_BIN_ATTRIBUTE *attr, char *buf, loff_t offset,
			     size_t count)
{
	const struct binding_file *f = binding_file_of(attr);
	struct mmp_profile *profile = mmp_dir_of(kobj)->profile;
	u64 number;
	bool off;
	int err = mmp_parse_binding(buf, count, &off, &number);

	if (err)
		return err;
	guard(mutex)(&mmp_lock);
	err = mmp_may_change(profile);
	if (err)
		return err;
	err = off ? f->unbind(profile, number) : f->bind(profile, number);
	mmp_bindings_settle();
	return err ?: count;
}

/*
 * Hash buckets walked per RCU read section; a read may list many bound
 * processes, so it reschedules in between.
 */
#define BUCKETS_AT_ONCE	64

/*
 * Prints bindings from byte @skip of the file on. Ends with a complete line,
 * unless not even one line fits.
 */
static ssize_t binding_read(struct file *file, struct kobject *kobj,
			    MMP_BIN_ATTRIBUTE *attr, char *buf, loff_t skip,
			    size_t size)
{
	const struct mmp_profile *profile = mmp_dir_of(kobj)->profile;
	char line[LONGEST_LINE];
	struct mmp_binding *b;
	size_t len = 0, n;

	guard(rcu)();
	for (unsigned int i = 0; i < HASH_SIZE(mmp_bindings); i++) {
		if (!(i % BUCKETS_AT_ONCE)) {
			rcu_read_unlock();
			cond_resched();
			rcu_read_lock();
		}
		hlist_for_each_entry_rcu(b, &mmp_bindings[i], node) {
			u64 number = binding_file_of(attr)->shown(b);

			if (!number || READ_ONCE(b->profile) != profile)
				continue;
			n = scnprintf(line, sizeof(line), "%llu\n", number);
			if (skip >= n) {
				skip -= n;
				continue;
			}
			if (len && n > size - len)
				return len;
			n = min(n - skip, size - len);
			memcpy(buf + len, line + skip, n);
			len += n;
			skip = 0;
		}
	}
	return len;
}

static u64 binding_shown_cgroup(const struct mmp_binding *b)
{
	return b->pid ? 0 : b->id;
}

/*
 * Returns the PID in the reader's PID namespace; 0 hides a process outside it.
 */
static u64 binding_shown_process(const struct mmp_binding *b)
{
	return b->pid ? pid_vnr(b->pid) : 0;
}

static struct binding_file cgroups_file = {
	.attr = __BIN_ATTR(cgroups, 0644, binding_read, binding_write, 0),
	.bind = mmp_bind_cgroup,
	.unbind = mmp_unbind_cgroup,
	.shown = binding_shown_cgroup,
};

static struct binding_file pids_file = {
	.attr = __BIN_ATTR(pids, 0644, binding_read, binding_write, 0),
	.bind = mmp_bind_process,
	.unbind = mmp_unbind_process,
	.shown = binding_shown_process,
};

/* Binary attributes, because a text attribute of sysfs ends after one page. */
const struct bin_attribute *const mmp_binding_files[] = {
	&cgroups_file.attr,
	&pids_file.attr,
	NULL
};
