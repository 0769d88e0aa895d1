/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Control plane: profiles, bindings, switches, and their files. Each file below
 * calls only files that stand above it in this list. Points and policies call
 * none of them.
 *
 * Every change is made under mmp_lock, and a write to any file may take this
 * lock. So a holder of mmp_lock must not wait for the provider, nor for a
 * resource that user space can hold. Removing a file waits for its writers, so
 * files are removed without mmp_lock.
 */
#ifndef MMPOLICY_CONTROL_H
#define MMPOLICY_CONTROL_H

#include <linux/kobject.h>
#include <linux/mutex.h>

#include "../sense/whose.h"
#include "text.h"

struct seq_file;

/*
 * change.c: the lock that every write takes, and the check whether it is
 * allowed
 */
extern struct mutex mmp_lock;	/* serialises changes; readers use RCU */
bool mmp_latched(void);
void mmp_latch(bool on);
int mmp_may_change(const struct mmp_profile *profile);

/**
 * struct mmp_parts - the points and policies of the module, filled in by core.c
 * @ops: callbacks for the kernel's hooks
 * @points: all points
 * @policies: all policies; the last entry is %NULL
 */
struct mmp_parts {
	const struct mm_policy_ops *ops;
	struct mmp_point *const *points;
	struct mmp_policy *const *policies;
};

/* settings.c: the module's points and policies, and the stock settings */
extern const struct mmp_parts *mmp_parts;
extern struct mmp_settings *mmp_stock;
int mmp_settings_init(const struct mmp_parts *parts);
void mmp_settings_exit(void);
void mmp_settings_default(struct mmp_settings *settings, const struct mmp_policy *policy);
struct mmp_settings *mmp_settings_copy(const struct mmp_settings *old);
const struct mmp_policy *mmp_policy_find(enum mm_policy_point point,
					 const char *name);

#define for_each_policy(policy, i)					\
	for ((i) = 0; ((policy) = mmp_parts->policies[i]); (i)++)

/* switches.c: the static keys of the hooks */
const char *mmp_policy_lacks(const struct mmp_policy *policy);
void mmp_switch_hooked(enum mm_policy_point point);
int mmp_switch_ready(enum mm_policy_point point);
void mmp_switch_release(enum mm_policy_point point);
void mmp_switches_settle(void);
void mmp_switch_orders(unsigned long orders);
void mmp_switch_set(enum mm_policy_point point, bool on);
void mmp_switch_shadow(bool on);
void mmp_switch_hold(enum mm_policy_point point, bool on);
bool mmp_switch_is_on(enum mm_policy_point point);
bool mmp_switch_is_held(enum mm_policy_point point);
void mmp_switches_halt(void);
void mmp_switches_resume(void);
const char *mmp_switches_state(void);

/* profile_memory.c */
void *mmp_scratch_make(enum mm_policy_point point, const struct mmp_policy *policy);
void mmp_scratch_use(enum mm_policy_point point, void **scratch);
int mmp_profile_make_memory(struct mmp_profile *profile);
void mmp_profile_free_memory(struct mmp_profile *profile);

/* profile.c */
extern struct list_head mmp_profiles;	/* under mmp_lock */
int mmp_profiles_init(const struct mmp_policy *const *active);
void mmp_profiles_exit(void);
struct mmp_profile *mmp_profile_new(const char *text);
int mmp_profile_link(struct mmp_profile *profile);
int mmp_profile_delete(const char *name);
void mmp_profiles_switch(void);
void mmp_profiles_to_stock(void);
int mmp_point_to_stock(enum mm_policy_point point, const struct mmp_policy *policy);
void mmp_profiles_gone(struct list_head *list);
void mmp_profile_free(struct mmp_profile *profile);
struct mmp_profile *mmp_profile_find(const char *name);
int mmp_set_policy(struct mmp_profile *profile, enum mm_policy_point point,
		   const struct mmp_policy *policy, bool shadow);
int mmp_set_knob(struct mmp_profile *profile, const struct mmp_knob *knob,
		 u32 value);

/* binding.c */
int mmp_bindings_init(void);
void mmp_bindings_exit(void);
void mmp_bindings_settle(void);
int mmp_bind_cgroup(struct mmp_profile *profile, u64 id);
int mmp_bind_process(struct mmp_profile *profile, u64 number);
int mmp_unbind_cgroup(const struct mmp_profile *profile, u64 id);
int mmp_unbind_process(const struct mmp_profile *profile, u64 number);
void mmp_unbind_all(void);

/* experiment.c */
extern const struct attribute *const mmp_experiment_files[];
void mmp_experiment_clear(void);
void mmp_experiment_units(struct seq_file *m);

/* lease.c */
extern const struct attribute *const mmp_lease_files[];
int mmp_lease_init(void (*on_expiry)(unsigned int ms));
void mmp_lease_exit(void);
void mmp_lease_clear(void);

/* debugfs.c */
void mmp_debugfs_init(void);
void mmp_debugfs_exit(void);
void mmp_debugfs_add(struct mmp_profile *profile);
void mmp_debugfs_remove(struct mmp_profile *profile);

/**
 * struct mmp_dir - the directory of a profile, a point, or one of its policies
 * @kobj: the directory
 * @node: link in mmp_profile.dirs
 * @profile: the profile that the directory belongs to
 * @point: the point; 0, and unused, in the directory of a profile
 */
struct mmp_dir {
	struct kobject kobj;
	struct list_head node;
	struct mmp_profile *profile;
	enum mm_policy_point point;
};

#define mmp_dir_of(kobject)	container_of(kobject, struct mmp_dir, kobj)

/* binding_files.c */
extern const struct bin_attribute *const mmp_binding_files[];

/* knob_files.c */
int mmp_knob_files_init(struct kobject *parent);
int mmp_knob_files_add(const struct mmp_policy *policy);
void mmp_knob_files_remove(const struct mmp_policy *policy);
void mmp_knob_files_exit(void);

/* profile_files.c */
/* held to make or remove sysfs files; taken before mmp_lock */
extern struct mutex mmp_files_lock;
int mmp_profile_files_init(struct kobject *parent);
void mmp_profile_files_freeze(void);
void mmp_profile_files_exit(void);
void mmp_profile_files_sweep(void);
int mmp_policy_files_add(const struct mmp_policy *policy);
void mmp_policy_files_remove(const struct mmp_policy *policy);

/* reset.c */
const char *mmp_state(void);
ssize_t mmp_point_error(char *buf);
void mmp_point_ready(enum mm_policy_point point);
void mmp_reset(void);
void mmp_reset_on_expiry(unsigned int ms);
void mmp_reset_on_loss(enum mm_policy_point point, const char *why);
void mmp_reset_for_good(void);
void mmp_reset_exit(void);

/* sysfs.c */
extern struct kobject *mmp_sysfs_root;
int mmp_sysfs_init(void);
void mmp_sysfs_exit(void);

#endif /* MMPOLICY_CONTROL_H */
