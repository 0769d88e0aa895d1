// SPDX-License-Identifier: GPL-2.0
/* The kernel has no hooks: functions of it call us while a point is enabled. */
#include <linux/bitops.h>
#include <linux/errno.h>
#include <linux/rcupdate.h>
#include <linux/string.h>

#include "direct.h"

const char *const mmp_provider = "ftrace";

/* How points are had: what is to be found, and what calls us there. */
static const struct {
	int (*find)(char *reason, size_t size);
	struct mmp_call *call;	/* or NULL, if it takes more */
} ways[MM_POLICY_POINTS] = {
	[MM_POLICY_ANON_ORDER] = { mmp_orders_find },
	[MM_POLICY_THP_GFP] = { mmp_thp_gfp_find, &mmp_call_thp_gfp },
	[MM_POLICY_COMPACT] = { mmp_compact_find, &mmp_call_compact },
	[MM_POLICY_MADV_FREE] = { mmp_madv_free_find, &mmp_call_madv_free },
};

static char lacks[MM_POLICY_POINTS][128];	/* the reason, or nothing */
static unsigned long hooked;			/* a bit for each point */

const char *mmp_provider_lacks(enum mm_policy_point point)
{
	if (point >= MM_POLICY_POINTS)
		return "the kernel does not tell when a page is mapped";
	return *lacks[point] ? lacks[point] : NULL;
}

static void lacks_fill(void)
{
	bool known = !mmp_prototypes_init();
	int i;

	for (i = 0; i < MM_POLICY_POINTS; i++) {
		if (!ways[i].find)
			strscpy(lacks[i], "needs a kernel with CONFIG_MM_POLICY");
		else if (!known)
			strscpy(lacks[i], "needs a kernel with BTF");
		else if (!ways[i].find(lacks[i], sizeof(lacks[i])))
			*lacks[i] = '\0';
	}
	mmp_prototypes_exit();
}

/**
 * mm_policy_register - find out what can be had here; all points stay off
 * @ops: stays valid until mm_policy_unregister() has returned
 * Return: 0; -EINVAL for another ABI.
 */
int mm_policy_register(const struct mm_policy_ops *ops)
{
	if (ops->abi != MM_POLICY_ABI)
		return -EINVAL;
	lacks_fill();
	return 0;
}

int mmp_provider_hook(enum mm_policy_point point)
{
	int err;

	if (mmp_provider_lacks(point))
		return -EOPNOTSUPP;
	if (test_bit(point, &hooked))
		return 0;
	err = ways[point].call ? mmp_call_begin(ways[point].call) : mmp_orders_hook();
	if (!err)
		__set_bit(point, &hooked);
	return err;
}

void mmp_provider_unhook(enum mm_policy_point point)
{
	if (!__test_and_clear_bit(point, &hooked))
		return;
	if (ways[point].call)
		mmp_call_end(ways[point].call);
	else
		mmp_orders_unhook();
}

/**
 * mm_policy_unregister - back to what mm does by itself
 * @ops: no callback of it runs once this has returned
 */
void mm_policy_unregister(const struct mm_policy_ops *ops)
{
	int point;

	for (point = 0; point < MM_POLICY_POINTS; point++) {
		mm_policy_enable(ops, point, false);
		mmp_provider_unhook(point);
	}
	synchronize_rcu();
}
