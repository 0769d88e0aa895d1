// SPDX-License-Identifier: GPL-2.0
/*
 * mmpolicy: memory-management policies, switched at run time.
 *
 * Lists the points and policies, and loads and unloads the module.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/init.h>
#include <linux/module.h>
#include <linux/string.h>

#include "anon_order/anon_order.h"
#include "bpf/bpf.h"
#include "control/control.h"
#include "madv_free/lazyfree.h"
#include "provider/provider.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

static struct mmp_point *const core_points[MM_POLICY_POINTS] = {
	[MM_POLICY_ANON_ORDER] = &mmp_point_anon_order,
	[MM_POLICY_THP_GFP] = &mmp_point_thp_gfp,
	[MM_POLICY_COMPACT] = &mmp_point_compact,
	[MM_POLICY_BULK] = &mmp_point_bulk,
	[MM_POLICY_MADV_FREE] = &mmp_point_madv_free,
};

static struct mmp_policy *const core_policies[] = {
#define MMP_POLICY(point, name)	&mmp_policy_##point##_##name,
#include "policies.h"
#undef MMP_POLICY
	&mmp_bpf_policies[0], &mmp_bpf_policies[1], &mmp_bpf_policies[2], &mmp_bpf_policies[3],
	NULL
};

static const struct mm_policy_ops core_ops = {
	.abi = MM_POLICY_ABI,
	.anon_orders = mmp_anon_orders,
	.anon_mapped = mmp_anon_mapped,
	.collapse_orders = mmp_collapse_orders,
	.thp_gfp = mmp_thp_gfp,
	.thp_done = mmp_thp_done,
	.compact_try = mmp_compact_try,
	.compact_done = mmp_compact_done,
	.bulk_pages = mmp_bulk_pages,
	.bulk_done = mmp_bulk_done,
	.madv_free_eager = mmp_madv_free_eager,
};

static const struct mmp_parts core_parts = {
	.ops = &core_ops,
	.points = core_points,
	.policies = core_policies,
};

static char *params[MM_POLICY_POINTS];

#define POINT_PARAM(point, id)						\
	module_param_named(point, params[id], charp, 0444);		\
	MODULE_PARM_DESC(point, "policy of the profile \"default\" at load")

POINT_PARAM(anon_order, MM_POLICY_ANON_ORDER);
POINT_PARAM(thp_gfp, MM_POLICY_THP_GFP);
POINT_PARAM(compact, MM_POLICY_COMPACT);
POINT_PARAM(bulk, MM_POLICY_BULK);
POINT_PARAM(madv_free, MM_POLICY_MADV_FREE);

static void core_list_policies(enum mm_policy_point point, const char *wrong)
{
	const struct mmp_policy *policy;
	char names[128] = "stock";
	int i;

	for_each_policy(policy, i) {
		if (policy->point != point || policy->loadable)
			continue;
		strlcat(names, " ", sizeof(names));
		strlcat(names, policy->name, sizeof(names));
	}
	pr_err("%s=%s: no such policy, use one of: %s\n",
	       core_points[point]->name, wrong, names);
}

static int core_parse_params(const struct mmp_policy **active)
{
	int i;

	for (i = 0; i < MM_POLICY_POINTS; i++) {
		if (!params[i] || sysfs_streq(params[i], "stock"))
			continue;
		active[i] = mmp_policy_find(i, params[i]);
		if (!active[i]) {
			core_list_policies(i, params[i]);
			return -EINVAL;
		}
	}
	return 0;
}

/*
 * Unloads the module. Removes the files first, so that no write begins, and
 * then detaches the hooks. Frees memory that callbacks use only after the last
 * callback has returned.
 */
static void core_free_all(void)
{
	mmp_bpf_exit();
	mmp_sysfs_exit();
	mmp_debugfs_exit();
	mm_policy_unregister(&core_ops);
	mmp_bindings_exit();
	mmp_profiles_exit();
	mmp_settings_exit();
}

static const struct mmp_watcher core_watcher = {
	.ready = mmp_point_ready,
	.lost = mmp_reset_on_loss,
};

static int __init core_take_hooks(void)
{
	int err;

	/*
	 * The module's tracepoint probes take a spinlock, which may sleep on
	 * PREEMPT_RT.
	 */
	if (IS_ENABLED(CONFIG_PREEMPT_RT)) {
		pr_err("kernels with PREEMPT_RT are not supported\n");
		return -EOPNOTSUPP;
	}
	err = mm_policy_register(&core_ops);
	if (err)
		pr_err("cannot use the kernel's mm_policy hooks: another module uses them, or their ABI is not %d\n",
		       MM_POLICY_ABI);
	else
		mmp_provider_watch(&core_watcher);
	return err;
}

/*
 * Refuses to load the module if a parameter names a policy that this kernel
 * cannot run.
 */
static int __init core_check_active(const struct mmp_policy *const *active)
{
	int i;

	for (i = 0; i < MM_POLICY_POINTS; i++) {
		const char *reason = active[i] ? mmp_policy_lacks(active[i]) : NULL;

		if (reason) {
			pr_err("%s=%s: %s\n", core_points[i]->name, active[i]->name, reason);
			return -EOPNOTSUPP;
		}
	}
	return 0;
}

static int __init mmp_init(void)
{
	const struct mmp_policy *active[MM_POLICY_POINTS] = {};
	int err;

	err = mmp_settings_init(&core_parts) ?: core_parse_params(active) ?:
	      core_take_hooks();
	if (err) {
		mmp_settings_exit();
		return err;
	}
	err = core_check_active(active) ?: mmp_bindings_init() ?: mmp_profiles_init(active);
	if (!err) {
		/*
		 * first, as a write to sysfs may create a profile, which then
		 * gets files in debugfs
		 */
		mmp_debugfs_init();
		err = mmp_sysfs_init() ?: mmp_bpf_init(mmp_sysfs_root);
	}
	if (err)
		core_free_all();
	return err;
}
module_init(mmp_init);

static void __exit mmp_exit(void)
{
	core_free_all();
}
module_exit(mmp_exit);

MODULE_AUTHOR("mmpolicy developers");
MODULE_DESCRIPTION("Memory-management policies, switched at run time");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
