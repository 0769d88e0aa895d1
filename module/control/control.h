/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the parts of the control plane share: profiles, what is bound to them,
 * the experiment, the lease, and their files. Points and policies need none of
 * it.
 *
 * Every change is made under mmp_lock, which the store of any file may take.
 * Files are made and removed without it, as removing one waits for its stores.
 */
#ifndef MMPOLICY_CONTROL_H
#define MMPOLICY_CONTROL_H

#include <linux/mutex.h>

#include "../mmpolicy.h"

struct seq_file;
struct task_struct;

/* profile.c */
extern struct mutex mmp_lock;	/* serialises changes; readers have RCU */
extern struct list_head mmp_profiles;
int mmp_profiles_init(const struct mmp_policy *const *active);
void mmp_profiles_exit(void);
struct mmp_profile *mmp_profile_new(const char *text);
int mmp_profile_link(struct mmp_profile *profile);
int mmp_profile_delete(const char *name);
void mmp_profiles_gone(struct list_head *list);
void mmp_profile_free(struct mmp_profile *profile);
struct mmp_profile *mmp_profile_find(const char *name);
int mmp_may_change(const struct mmp_profile *profile);
int mmp_set_policy(struct mmp_profile *profile, enum mm_policy_point point,
		   const struct mmp_policy *policy);
int mmp_set_knob(struct mmp_profile *profile, const struct mmp_knob *knob,
		 u32 value);
void mmp_all_stock(void);
bool mmp_active(void);
u64 __percpu *mmp_latency_counters(const struct mmp_profile *profile,
				   enum mm_policy_point point);

/* binding.c */
extern const struct bin_attribute *const mmp_binding_files[];
int mmp_binding_init(void);
void mmp_binding_exit(void);
void mmp_binding_settle(void);
void mmp_unbind_all(void);
bool mmp_bound(const struct mmp_profile *profile);

/* experiment.c */
extern const struct attribute *const mmp_experiment_files[];
bool mmp_experiment_running(void);
bool mmp_experiment_uses(const struct mmp_profile *profile);
void mmp_experiment_clear(void);
void mmp_experiment_units(struct seq_file *m);
struct mmp_profile *mmp_experiment_arm(struct task_struct *task);

/* latency.c */
#define MMP_LATENCIES	32	/* log2 of nanoseconds */
DECLARE_STATIC_KEY_FALSE(mmp_timing);
int mmp_latency_start(void);
void mmp_latency_stop(void);
void mmp_latency_asked(enum mm_policy_point point);

/* lease.c */
extern const struct attribute *const mmp_lease_files[];
bool mmp_expired(void);
void mmp_lease_clear(void);
void mmp_lease_exit(void);

/* sysfs.c */
int mmp_parse(const char *buf, size_t count, u64 min, u64 max, u64 *value);
struct mmp_profile *mmp_profile_of_dir(struct kobject *kobj);
int mmp_sysfs_init(void);
void mmp_sysfs_exit(void);
void mmp_sysfs_sweep(void);

/* debugfs.c */
void mmp_debugfs_init(void);
void mmp_debugfs_exit(void);
void mmp_debugfs_add(struct mmp_profile *profile);
void mmp_debugfs_remove(struct mmp_profile *profile);

#endif /* MMPOLICY_CONTROL_H */
