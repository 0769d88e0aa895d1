// SPDX-License-Identifier: GPL-2.0
/*
 * Sizes of anonymous folios that sysfs enables (hugepages-*kB/enabled).
 *
 * The kernel asks only for enabled sizes. So while policies decide, each size
 * that a policy may request is "open": enabled for all tasks in the kernel's
 * variables. The administrator's settings are kept in upper bits of these
 * variables, which stand for no order. The sysfs files read and write these
 * upper bits, because the module passes an upper bit as the order to the
 * functions behind the files. Tasks without a policy get the administrator's
 * sizes (orders.c).
 *
 * The enabled sizes also start and stop khugepaged. While the kernel checks
 * whether to do so, the module closes the open sizes that khugepaged uses, so
 * that only the administrator's settings count.
 */
#include <linux/mm.h>
#include <linux/rcupdate.h>
#include <linux/spinlock.h>
#include <linux/static_call.h>
#include <linux/string.h>

#include "direct.h"

#define SIZES	THP_ORDERS_ALL_ANON
/* bit of order 0 in the upper bits, which the kernel does not use for any order */
#define KEPT	32

enum { ALWAYS, MADVISE, INHERIT, MODES };

static unsigned long *enabled[MODES];	/* the kernel's variables: bitmaps of orders */
static spinlock_t *enabled_lock;	/* the kernel's lock of the variables */
static unsigned long *global;		/* the kernel's transparent_hugepage_flags */
static struct task_struct **khugepaged;	/* pointer to the thread, NULL if it does not run */

/* The following variables are changed under enabled_lock. */
/*
 * orders that each of the kernel's variables enabled when they last equalled the administrator's
 * settings in its upper bits
 */
static unsigned long copied[MODES];
static unsigned long opened;		/* bitmap of the orders enabled for policies */
/* true while the upper bits of the kernel's variables keep the administrator's settings */
static bool kept;
/* true once every task sees that no size is enabled for policies */
static bool closed;
static unsigned int looking;		/* number of running calls of start_stop_khugepaged() */

static struct thpsize kept_sizes[PMD_ORDER + 1];

/*
 * Sizes that the administrator allows, without and with MADV_HUGEPAGE: bitmaps of orders. While no
 * settings are kept in the upper bits of the kernel's variables, all bits are set here, so only
 * these variables decide.
 */
unsigned long mmp_admin_sizes[2] __read_mostly = { ~0UL, ~0UL };

DEFINE_STATIC_CALL_NULL(mmp_khugepaged_original, mmp_replace_khugepaged);
DEFINE_STATIC_CALL_NULL(mmp_khugepaged_look, mmp_replace_khugepaged);

/*
 * While policies decide, makes anon_enabled_show() and anon_enabled_store(), which serve the sysfs
 * files, use bit 32 + order, where the administrator's setting is kept.
 */
struct kobject *mmp_ask_thpsize(struct kobject *kobj)
{
	return READ_ONCE(kept) ? &kept_sizes[to_thpsize(kobj)->order].kobj : kobj;
}

static unsigned long enabled_now(int mode)
{
	return *enabled[mode] & SIZES;
}

static unsigned long enabled_kept(int mode)
{
	return *enabled[mode] >> KEPT & SIZES;
}

static void enabled_set(int mode, unsigned long orders, unsigned long value)
{
	WRITE_ONCE(*enabled[mode], (*enabled[mode] & ~orders) | (value & orders));
}

static void enabled_keep(int mode, unsigned long orders, unsigned long value)
{
	enabled_set(mode, orders << KEPT, value << KEPT);
}

/*
 * Returns the orders whose setting, as returned by @now, differs from @copied.
 */
static unsigned long enabled_changed(unsigned long (*now)(int mode))
{
	unsigned long changed = 0;
	int i;

	for (i = 0; i < MODES; i++)
		changed |= now(i) ^ copied[i];
	return changed;
}

/*
 * Writes the administrator's settings, and the open sizes (those enabled for policies), to the
 * kernel's variables.
 */
static void enabled_apply(void)
{
	unsigned long open = looking ? opened & ~MMP_KHUGEPAGED_SIZES : opened;
	int i;

	for (i = 0; i < MODES; i++)
		enabled_set(i, SIZES, enabled_kept(i) | (i == ALWAYS ? open : 0));
}

/*
 * The kernel's variables hold the administrator's settings twice: in their lower bits, which the
 * kernel reads, and in their upper bits. If one copy was written to, updates the other.
 */
static void enabled_sync(void)
{
	unsigned long changed = enabled_changed(enabled_kept);
	unsigned long now = enabled_changed(enabled_now) & ~changed;
	int i;

	for (i = 0; i < MODES; i++) {
		enabled_set(i, changed, enabled_kept(i));
		enabled_keep(i, now, *enabled[i]);
		copied[i] = enabled_kept(i);
	}
}

/*
 * Sets @given to the orders (a bitmap) that the kernel would allow in a fault with the settings
 * that @of returns: without and with MADV_HUGEPAGE.
 */
static void given_by(unsigned long (*of)(int mode), unsigned long given[2])
{
	unsigned long flags = READ_ONCE(*global);

	given[false] = of(ALWAYS);
	given[true] = given[false] | of(MADVISE);
	if (flags & BIT(TRANSPARENT_HUGEPAGE_FLAG))
		given[false] |= of(INHERIT);
	if (flags & (BIT(TRANSPARENT_HUGEPAGE_FLAG) | BIT(TRANSPARENT_HUGEPAGE_REQ_MADV_FLAG)))
		given[true] |= of(INHERIT);
}

/*
 * Updates mmp_admin_sizes after each change of the administrator's settings. Once every task sees
 * that no size is enabled for policies, sets all its bits, so only the kernel's variables decide.
 */
static void given_renew(void)
{
	unsigned long given[2] = { ~0UL, ~0UL };

	if (!closed)
		given_by(enabled_kept, given);
	WRITE_ONCE(mmp_admin_sizes[false], given[false]);
	WRITE_ONCE(mmp_admin_sizes[true], given[true]);
}

/**
 * mmp_sizes_admin - select the orders that the administrator allows
 * @vm_flags: flags of the VMA
 * @orders: bitmap of the orders that the kernel asks for
 *
 * Return: the allowed orders of @orders.
 */
unsigned long mmp_sizes_admin(unsigned long vm_flags, unsigned long orders)
{
	return orders & READ_ONCE(mmp_admin_sizes[!!(vm_flags & VM_HUGEPAGE)]);
}

/**
 * mmp_pmd_size_asked - test whether the kernel asks for PMD size in a fault
 * @vma: the VMA of the fault
 *
 * Without the mm_policy hooks, the kernel asks only if PMD size is enabled.
 */
bool mmp_pmd_size_asked(const struct vm_area_struct *vma)
{
	unsigned long given = mmp_sizes_admin(vma->vm_flags, BIT(PMD_ORDER));

	return (READ_ONCE(opened) | given) & BIT(PMD_ORDER);
}

bool mmp_wants_khugepaged(void)
{
	return READ_ONCE(kept);
}

static void looking_begins(void)
{
	spin_lock(enabled_lock);
	looking++;
	if (kept) {
		if (!opened)
			enabled_sync();
		enabled_apply();
		given_renew();
	}
	spin_unlock(enabled_lock);
}

static void looking_ends(void)
{
	spin_lock(enabled_lock);
	looking--;
	if (kept)
		enabled_apply();
	spin_unlock(enabled_lock);
}

/*
 * Runs in place of start_stop_khugepaged(), which the kernel calls after each write to a sysfs file
 * of sizes. During the call, the sizes of khugepaged that are enabled for policies are disabled, so
 * that only the administrator's settings start or stop it.
 */
int mmp_replace_khugepaged(void)
{
	int err;

	mmp_call_enter();
	looking_begins();
	err = static_call(mmp_khugepaged_original)();
	looking_ends();
	mmp_call_leave();
	return err;
}

/*
 * Starts or stops khugepaged if its state does not match the settings. A check
 * by the kernel that began before its function was hooked may have seen open
 * sizes, or missed a write. If the state matches, the kernel does not check
 * again, as that may raise vm.min_free_kbytes.
 */
static void khugepaged_repair(unsigned long (*of)(int mode))
{
	unsigned long flags = READ_ONCE(*global), given[2];
	bool should;

	given_by(of, given);
	should = given[true] & MMP_KHUGEPAGED_SIZES;
	if (IS_ENABLED(CONFIG_READ_ONLY_THP_FOR_FS))
		should |= flags & (BIT(TRANSPARENT_HUGEPAGE_FLAG) |
				   BIT(TRANSPARENT_HUGEPAGE_REQ_MADV_FLAG));
	if (should != !!READ_ONCE(*khugepaged))
		static_call(mmp_khugepaged_look)();
}

/*
 * Gives this file the kernel's variables and functions that mmp_needs_find() and
 * mmp_call_find() have found. Context: after these two.
 */
void mmp_sizes_found(void)
{
	int i;

	for (i = 0; i <= PMD_ORDER; i++)
		kept_sizes[i].order = KEPT + i;
	enabled[ALWAYS] = mmp_found(MMP_NEED_always);
	enabled[MADVISE] = mmp_found(MMP_NEED_madvise);
	enabled[INHERIT] = mmp_found(MMP_NEED_inherit);
	enabled_lock = mmp_found(MMP_NEED_sizes_lock);
	global = mmp_found(MMP_NEED_thp_flags);
	khugepaged = mmp_found(MMP_NEED_khugepaged);
	static_call_update(mmp_khugepaged_original, mmp_call_original(&mmp_call_rare, 3));
	static_call_update(mmp_khugepaged_look, mmp_found(MMP_NEED_start_stop));
}

/**
 * mmp_sizes_set_aside - keep a copy of the administrator's settings in the upper
 * bits of the kernel's variables
 *
 * Context: once the sysfs files call the module, as they change the kernel's
 * settings until then; takes a spinlock.
 */
void mmp_sizes_set_aside(void)
{
	int i;

	spin_lock(enabled_lock);
	opened = 0;
	closed = false;
	for (i = 0; i < MODES; i++) {
		copied[i] = enabled_now(i);
		enabled_keep(i, SIZES, copied[i]);
	}
	given_renew();
	WRITE_ONCE(kept, true);
	spin_unlock(enabled_lock);
}

/**
 * mmp_sizes_ready - adopt late writes to the sysfs files, so that
 * mmp_sizes_open() may be called
 *
 * Context: when all calls of the point are attached; may sleep.
 */
void mmp_sizes_ready(void)
{
	/* wait for writes to the sysfs files that began before the files called the module */
	synchronize_rcu_tasks();
	mmp_sizes_follow();
	khugepaged_repair(enabled_kept);
}

/**
 * mmp_sizes_open - enable the orders that policies may request
 * @orders: bitmap of orders; the administrator's orders stay enabled
 *
 * Context: after mmp_sizes_ready(); takes a spinlock.
 */
void mmp_sizes_open(unsigned long orders)
{
	spin_lock(enabled_lock);
	if (kept) {
		opened = orders & SIZES;
		enabled_apply();
	}
	spin_unlock(enabled_lock);
}

/**
 * mmp_sizes_close - enable only the orders of the administrator again
 *
 * For one grace period of RCU tasks, tasks may still use the open sizes that
 * they have read before, so __thp_vma_allowable_orders() must call the module
 * until then.
 * Context: takes a spinlock.
 */
void mmp_sizes_close(void)
{
	int i;

	if (!READ_ONCE(kept))
		return;
	spin_lock(enabled_lock);
	if (kept) {
		opened = 0;
		for (i = 0; i < MODES; i++)
			copied[i] = enabled_kept(i);
		enabled_apply();
	}
	spin_unlock(enabled_lock);
}

/**
 * mmp_sizes_closed - record that every task has seen that no size is open
 *
 * Context: one grace period of RCU tasks after mmp_sizes_close(); takes a
 * spinlock.
 */
void mmp_sizes_closed(void)
{
	spin_lock(enabled_lock);
	closed = true;
	spin_unlock(enabled_lock);
	mmp_sizes_follow();
}

/**
 * mmp_sizes_follow - adopt settings from writes to the sysfs files that began
 * before these files called the module
 *
 * Context: when every task calls the module, and then periodically; takes a
 * spinlock.
 */
void mmp_sizes_follow(void)
{
	if (!READ_ONCE(kept))
		return;
	spin_lock(enabled_lock);
	if (kept && !opened) {
		enabled_sync();
		given_renew();
	}
	spin_unlock(enabled_lock);
}

/**
 * mmp_sizes_restore - let the sysfs files use the kernel's variables again
 *
 * Context: after mmp_sizes_closed(), when the files no longer call the module,
 * or when ftrace refuses to detach; may sleep.
 */
void mmp_sizes_restore(void)
{
	int i;

	if (!READ_ONCE(kept))
		return;		/* settings were never kept */
	spin_lock(enabled_lock);
	enabled_sync();
	WRITE_ONCE(kept, false);
	for (i = 0; i < MODES; i++)
		enabled_keep(i, SIZES, 0);
	spin_unlock(enabled_lock);
	khugepaged_repair(enabled_now);
}
