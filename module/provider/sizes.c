// SPDX-License-Identifier: GPL-2.0
/*
 * Which sizes sysfs enables for anonymous memory: hugepages-*kB/enabled.
 *
 * The kernel asks only for sizes that are enabled. So while policies decide, all are,
 * in the variables of the kernel. What the administrator has given is kept beside
 * them, in bits that mean no order: there his reads and writes go meanwhile, as the
 * functions behind the files are told of another order than theirs. Everybody else
 * gets what stands there (see orders.c).
 *
 * khugepaged is started and stopped by what is enabled, too. While the kernel looks
 * for that, the sizes that it runs for are what they were given as.
 */
#include <linux/mm.h>
#include <linux/kprobes.h>
#include <linux/rcupdate.h>
#include <linux/spinlock.h>
#include <linux/string.h>

#include "direct.h"

#define SIZES	THP_ORDERS_ALL_ANON
#define KEPT	32	/* beyond all orders */

enum { ALWAYS, MADVISE, INHERIT, MODES };

static unsigned long *enabled[MODES];	/* the kernel's: a bit for each order */
static spinlock_t *enabled_lock;
static unsigned long *global;		/* transparent_hugepage_flags */

static unsigned long copied[MODES];	/* as the sizes and what is kept were the same */
static bool open;			/* all sizes enabled? */
static unsigned int looking;		/* calls of lookers[] that have begun */

static struct thpsize kept_sizes[PMD_ORDER + 1];

unsigned long mmp_sizes_given[2] __read_mostly;

static struct mmp_call files = {
	.entry = mmp_entry_thpsize,
	.function = { "anon_enabled_show", "anon_enabled_store" },
	.prototype = {
		"ssize_t(kobject*, kobj_attribute*, char*)",
		"ssize_t(kobject*, kobj_attribute*, char const*, size_t)",
	},
};

/* For reads and writes of a size: that of what is kept for it. */
struct kobject *mmp_ask_thpsize(struct kobject *kobj)
{
	return &kept_sizes[to_thpsize(kobj)->order].kobj;
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

/* Sizes that are in some mode other than @copied says. */
static unsigned long enabled_changed(unsigned long (*now)(int mode))
{
	unsigned long changed = 0;
	int i;

	for (i = 0; i < MODES; i++)
		changed |= now(i) ^ copied[i];
	return changed & SIZES;
}

static unsigned long enabled_now(int mode)
{
	return *enabled[mode];
}

/* No file says so of a size: it is in all modes. */
static void enabled_open(unsigned long orders)
{
	int i;

	for (i = 0; i < MODES; i++)
		enabled_set(i, orders, ~0UL);
}

static void enabled_give_back(unsigned long orders)
{
	int i;

	for (i = 0; i < MODES; i++)
		enabled_set(i, orders, enabled_kept(i));
}

/* While both places count, what was written to one of them goes to the other. */
static void enabled_sync(void)
{
	unsigned long kept = enabled_changed(enabled_kept);
	unsigned long now = enabled_changed(enabled_now) & ~kept;
	int i;

	enabled_give_back(kept);
	for (i = 0; i < MODES; i++) {
		enabled_keep(i, now, *enabled[i]);
		copied[i] = enabled_kept(i);
	}
}

/* After each write, as that is when the kernel looks whether khugepaged is to run. */
static void given_renew(void)
{
	unsigned long always = enabled_kept(ALWAYS), asked = always | enabled_kept(MADVISE);
	unsigned long flags = READ_ONCE(*global);

	if (flags & BIT(TRANSPARENT_HUGEPAGE_FLAG))
		always |= enabled_kept(INHERIT);
	if (flags & (BIT(TRANSPARENT_HUGEPAGE_FLAG) | BIT(TRANSPARENT_HUGEPAGE_REQ_MADV_FLAG)))
		asked |= enabled_kept(INHERIT);
	WRITE_ONCE(mmp_sizes_given[false], always);
	WRITE_ONCE(mmp_sizes_given[true], asked);
}

static int looking_begins(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	spin_lock(enabled_lock);
	looking++;
	if (open)
		enabled_give_back(MMP_KHUGEPAGED_SIZES);
	else
		enabled_sync();
	given_renew();
	spin_unlock(enabled_lock);
	return 0;
}

static int looking_ends(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	spin_lock(enabled_lock);
	if (!--looking && open)
		enabled_open(MMP_KHUGEPAGED_SIZES);
	spin_unlock(enabled_lock);
	return 0;
}

/* Where the kernel looks; some kernels have the second one in the first. */
static const char *const lookers[] = {
	"start_stop_khugepaged", "set_recommended_min_free_kbytes"
};

static struct kretprobe looker_probes[ARRAY_SIZE(lookers)];

static void khugepaged_unwatch(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(lookers); i++)
		if (looker_probes[i].kp.addr)
			unregister_kretprobe(&looker_probes[i]);
}

static int khugepaged_watch(void)
{
	int i, err = 0;

	looking = 0;
	memset(looker_probes, 0, sizeof(looker_probes));
	for (i = 0; i < ARRAY_SIZE(lookers) && !err; i++) {
		if (!mmp_symbol(lookers[i]))
			continue;
		looker_probes[i] = (struct kretprobe){
			.kp.symbol_name = lookers[i],
			.entry_handler = looking_begins,
			.handler = looking_ends,
			.maxactive = 64,
		};
		err = register_kretprobe(&looker_probes[i]);
		if (err)
			looker_probes[i].kp.addr = NULL;
	}
	if (err)
		khugepaged_unwatch();
	return err;
}

/**
 * mmp_sizes_find - find what is needed
 * @reason: why not
 * @size: of that
 *
 * Context: as mmp_call_find().
 * Return: 0 or -EOPNOTSUPP.
 */
int mmp_sizes_find(char *reason, size_t size)
{
	int i;

	for (i = 0; i <= PMD_ORDER; i++)
		kept_sizes[i].order = KEPT + i;
	enabled[ALWAYS] = mmp_symbol("huge_anon_orders_always");
	enabled[MADVISE] = mmp_symbol("huge_anon_orders_madvise");
	enabled[INHERIT] = mmp_symbol("huge_anon_orders_inherit");
	enabled_lock = mmp_symbol("huge_anon_orders_lock");
	global = mmp_symbol("transparent_hugepage_flags");
	if (enabled[ALWAYS] && enabled[MADVISE] && enabled[INHERIT] && enabled_lock &&
	    global && mmp_symbol(lookers[0]))
		return mmp_call_find(&files, reason, size);
	snprintf(reason, size, "the kernel keeps the enabled sizes in another way");
	return -EOPNOTSUPP;
}

/**
 * mmp_sizes_shadow - keep what is enabled in a second place, for the files
 *
 * Context: may sleep.
 * Return: 0 or an error.
 */
int mmp_sizes_shadow(void)
{
	int i, err;

	spin_lock(enabled_lock);
	for (i = 0; i < MODES; i++) {
		copied[i] = *enabled[i] & SIZES;
		enabled_keep(i, SIZES, copied[i]);
	}
	given_renew();
	spin_unlock(enabled_lock);
	err = khugepaged_watch();
	if (err)
		return err;
	spin_lock(enabled_lock);	/* for writes before it was watched */
	enabled_sync();
	given_renew();
	spin_unlock(enabled_lock);
	err = mmp_call_begin(&files);
	if (err)
		khugepaged_unwatch();
	return err;
}

/**
 * mmp_sizes_open - enable all sizes
 *
 * Context: after mmp_sizes_shadow(); may sleep.
 */
void mmp_sizes_open(void)
{
	synchronize_rcu_tasks();	/* for writes that have begun before */
	spin_lock(enabled_lock);
	enabled_sync();
	given_renew();
	enabled_open(looking ? SIZES & ~MMP_KHUGEPAGED_SIZES : SIZES);
	open = true;
	spin_unlock(enabled_lock);
}

/**
 * mmp_sizes_close - enable what the administrator has given
 *
 * Context: after mmp_sizes_open(); may sleep. Nobody believes that more is enabled
 *	any more when this returns.
 */
void mmp_sizes_close(void)
{
	int i;

	spin_lock(enabled_lock);
	open = false;
	for (i = 0; i < MODES; i++)
		copied[i] = enabled_kept(i);
	enabled_give_back(SIZES);
	spin_unlock(enabled_lock);
	synchronize_rcu_tasks();
}

/**
 * mmp_sizes_unshadow - let the files have the kernel's variables again
 *
 * Context: after mmp_sizes_close(); may sleep.
 */
void mmp_sizes_unshadow(void)
{
	int i;

	mmp_call_end(&files);
	khugepaged_unwatch();
	spin_lock(enabled_lock);
	enabled_sync();
	for (i = 0; i < MODES; i++)
		enabled_keep(i, SIZES, 0);
	spin_unlock(enabled_lock);
}
