// SPDX-License-Identifier: GPL-2.0
/*
 * Assigns programs to slots, and removes them.
 *
 * A program may disappear at any time, because its link is detached or its
 * loader has exited. The slot answers stock from then on, which needs neither
 * memory nor mmp_lock. Afterwards a worker sets the profiles with this policy
 * to stock.
 */
#include <linux/cleanup.h>
#include <linux/filter.h>
#include <linux/string.h>
#include <linux/workqueue.h>

#include "../control/control.h"
#include "ask.h"

/* may be taken while mmp_lock is held, and in page faults */
static DEFINE_SPINLOCK(slots_lock);

#define slot_policy(slot)	(&mmp_bpf_policies[(slot) - mmp_bpf_slots])

static void bpf_tidy(struct work_struct *work);
static DECLARE_DELAYED_WORK(tidying, bpf_tidy);

/*
 * Stops calling the program of a slot. @lacks is the reason that sysfs then shows. The caller holds
 * slots_lock.
 */
static void slot_stop(struct mmp_bpf_slot *slot, const char *lacks)
{
	RCU_INIT_POINTER(slot->ops, NULL);
	WRITE_ONCE(slot_policy(slot)->lacks, lacks);
	mod_delayed_work(mmp_unbound_wq, &tidying, 0);
}

/* Starts calling @ops, whose program the slot holds. The caller holds mmp_lock. */
static void slot_start(struct mmp_bpf_slot *slot, const struct mmp_bpf_ops *ops)
{
	struct mmp_policy *policy = slot_policy(slot);

	policy->max_order = ops->max_order;
	spin_lock(&slots_lock);
	slot->owner = ops;
	slot->error[0] = '\0';
	rcu_assign_pointer(slot->ops, ops);
	WRITE_ONCE(policy->lacks, NULL);
	spin_unlock(&slots_lock);
}

static void slot_set_knobs(struct mmp_bpf_slot *slot, const struct mmp_bpf_knob *knobs)
{
	struct mmp_policy *policy = slot_policy(slot);
	unsigned int nr;

	memcpy(slot->knobs, knobs, sizeof(slot->knobs));
	for (nr = 0; nr < MMP_BPF_KNOBS && *slot->knobs[nr].name; nr++) {
		const struct mmp_bpf_knob *from = &slot->knobs[nr];
		struct mmp_knob *to = &policy->knobs[nr];

		to->attr = (struct attribute){ .name = from->name, .mode = 0644 };
		to->min = from->min;
		to->max = from->max;
		to->def = from->def;
		to->unit = from->unit;
		to->meaning = from->meaning;
	}
	policy->nr_knobs = nr;
}

/*
 * Sets all profiles with the policy of a slot to stock, and frees the slot.
 * Does nothing if the slot has a program or is free.
 */
static int slot_tidy(struct mmp_bpf_slot *slot)
{
	struct mmp_policy *policy = slot_policy(slot);
	int err;

	guard(mutex)(&mmp_files_lock);
	scoped_guard(mutex, &mmp_lock) {
		if (rcu_access_pointer(slot->ops) || !slot->held)
			return 0;
		err = mmp_point_to_stock(policy->point, policy);
		if (err || READ_ONCE(slot->owner))
			return err;
	}
	mmp_policy_files_remove(policy);
	synchronize_rcu();
	guard(mutex)(&mmp_lock);
	bpf_prog_put(slot->held);
	slot->held = NULL;
	slot->name[0] = '\0';
	policy->nr_knobs = 0;
	return 0;
}

/*
 * Frees the slots of programs that have gone. If memory is short, the slots
 * still answer stock, and this retries after a second.
 */
static void bpf_tidy(struct work_struct *work)
{
	int err = 0;

	for (int i = 0; i < MMP_BPF_SLOTS; i++)
		err = slot_tidy(&mmp_bpf_slots[i]) ?: err;
	if (err)
		mod_delayed_work(mmp_unbound_wq, &tidying, HZ);
}

/**
 * mmp_bpf_fail - stop calling a program that has reported an error
 * @ops: the program; ignored if another program has replaced it
 * @text: reason, for the loader of the program
 *
 * Context: any, in a call of the program.
 */
void mmp_bpf_fail(const void *ops, const char *text)
{
	spin_lock(&slots_lock);
	for (int i = 0; i < MMP_BPF_SLOTS; i++) {
		struct mmp_bpf_slot *slot = &mmp_bpf_slots[i];

		if (rcu_access_pointer(slot->ops) != ops)
			continue;
		strscpy(slot->error, *text ? text : "no reason");
		strreplace(slot->error, '\n', ' ');
		slot_stop(slot, slot->error);
	}
	spin_unlock(&slots_lock);
}

static void slot_give_back(struct bpf_prog *prog)
{
	if (prog)
		bpf_prog_put(prog);
}

DEFINE_FREE(mmp_prog, struct bpf_prog *, slot_give_back(_T))

static struct mmp_bpf_slot *slot_of(const void *owner)
{
	for (int i = 0; i < MMP_BPF_SLOTS; i++)
		if (READ_ONCE(mmp_bpf_slots[i].owner) == owner)
			return &mmp_bpf_slots[i];
	return NULL;
}

static struct mmp_bpf_slot *slot_free(void)
{
	for (int i = 0; i < MMP_BPF_SLOTS; i++)
		if (!mmp_bpf_slots[i].held)
			return &mmp_bpf_slots[i];
	return NULL;
}

/*
 * Checks max_order and flags, which a program of a point other than anon_order must leave 0.
 * Returns 0, -EOPNOTSUPP or -ERANGE.
 */
static int slot_check(enum mm_policy_point point, const struct mmp_bpf_ops *ops)
{
	if (point != MM_POLICY_ANON_ORDER)
		return ops->flags || ops->max_order ? -EOPNOTSUPP : 0;
	return ops->max_order >= MMP_MIN_ORDER && ops->max_order <= MMP_MAX_ORDER ? 0 : -ERANGE;
}

/*
 * Returns true if a policy of the point, or a program of any point, has this
 * name. Commands name a program without its point.
 */
static bool slot_name_is_taken(enum mm_policy_point point, const char *name)
{
	for (int i = 0; i < MMP_BPF_SLOTS; i++)
		if (!strcmp(mmp_bpf_slots[i].name, name))
			return true;
	return mmp_policy_find(point, name);
}

/**
 * mmp_bpf_reg - register a program as a policy
 * @point: the point of the policy
 * @ops: the program
 * @given: reference to the program, consumed even on error; NULL if the program is being freed
 *
 * The caller takes the reference before this call, which may wait for seconds for the locks.
 *
 * Context: may sleep.
 * Return: 0; -EBUSY after the lease has expired; -EEXIST if the name is taken; -ENOSPC without
 *	a free slot; -ESTALE if @given is NULL; -ERANGE or -EOPNOTSUPP for a wrong maximum order or
 *	flags; -ENOMEM.
 */
int mmp_bpf_reg(enum mm_policy_point point, const struct mmp_bpf_ops *ops, struct bpf_prog *given)
{
	struct bpf_prog *prog __free(mmp_prog) = given;
	struct mmp_bpf_slot *slot;
	int err, cpu;

	if (!prog)
		return -ESTALE;

	guard(mutex)(&mmp_files_lock);
	guard(mutex)(&mmp_lock);
	err = mmp_may_change(NULL) ?: slot_check(point, ops);
	if (err)
		return err;
	if (slot_name_is_taken(point, ops->name))
		return -EEXIST;
	slot = slot_free();
	if (!slot)
		return -ENOSPC;
	strscpy(slot->name, ops->name);
	for_each_possible_cpu(cpu)
		per_cpu(mmp_bpf_clamped[slot - mmp_bpf_slots], cpu) = 0;
	slot->held = no_free_ptr(prog);
	slot_policy(slot)->point = point;
	slot_set_knobs(slot, ops->knobs);
	err = mmp_policy_files_add(slot_policy(slot));
	if (err)
		mod_delayed_work(mmp_unbound_wq, &tidying, 0);
	else
		slot_start(slot, ops);
	return err;
}

/**
 * mmp_bpf_replace - replace a program; profiles keep the policy
 * @ops: the new program, with the policy name of the old one
 * @old: the old program
 * @given: reference to the new program, consumed even on error; NULL if the
 *	program is being freed
 *
 * Context: may sleep.
 * Return: 0; -EBUSY after the lease has expired; -ESTALE if @given is NULL;
 * -ENOENT if @old has no slot; -EINVAL for another policy name; -EXDEV for
 * other knobs; -ERANGE or -EOPNOTSUPP for a wrong maximum order or flags.
 */
int mmp_bpf_replace(const struct mmp_bpf_ops *ops, const void *old, struct bpf_prog *given)
{
	struct bpf_prog *prog __free(mmp_prog) = given, *before;
	struct mmp_bpf_slot *slot;
	int err;

	if (!prog)
		return -ESTALE;

	guard(mutex)(&mmp_lock);
	err = mmp_may_change(NULL);
	if (err)
		return err;
	slot = slot_of(old);
	if (!slot)
		return -ENOENT;
	if (strcmp(slot->name, ops->name))
		return -EINVAL;
	err = slot_check(slot_policy(slot)->point, ops);
	if (err)
		return err;
	if (memcmp(slot->knobs, ops->knobs, sizeof(slot->knobs)))
		return -EXDEV;
	before = slot->held;
	slot->held = no_free_ptr(prog);
	slot_start(slot, ops);
	mmp_profiles_switch();
	synchronize_rcu();
	bpf_prog_put(before);
	return 0;
}

/**
 * mmp_bpf_unreg - stop calling a program whose link is detached
 * @ops: the program
 *
 * Context: never waits. The kernel keeps @ops for a grace period after this.
 */
void mmp_bpf_unreg(const void *ops)
{
	struct mmp_bpf_slot *slot;

	spin_lock(&slots_lock);
	slot = slot_of(ops);
	if (slot) {
		slot->owner = NULL;
		slot_stop(slot, MMP_BPF_NOBODY);
	}
	spin_unlock(&slots_lock);
}

/**
 * mmp_bpf_look - copy the state of a slot
 * @nr: index of the slot
 * @facts: receives the state; all zero for a slot without a program
 *
 * Context: may sleep.
 */
void mmp_bpf_look(unsigned int nr, struct mmp_bpf_facts *facts)
{
	const struct mmp_bpf_slot *slot = &mmp_bpf_slots[nr];
	int cpu;

	*facts = (struct mmp_bpf_facts){ .point = "" };
	guard(mutex)(&mmp_lock);
	if (!slot->held || !READ_ONCE(slot->owner))
		return;
	strscpy(facts->name, slot->name);
	facts->point = mmp_parts->points[slot_policy(slot)->point]->name;
	facts->program = slot->held->aux->id;
	for_each_possible_cpu(cpu)
		facts->clamped += READ_ONCE(per_cpu(mmp_bpf_clamped[nr], cpu));
	spin_lock(&slots_lock);
	strscpy(facts->error, slot->error);
	spin_unlock(&slots_lock);
}

/*
 * Sets the reason, shown in sysfs, why this kernel cannot load BPF programs; @lacks is NULL if it
 * can.
 */
void mmp_bpf_slots_init(const char *lacks)
{
	for (int i = 0; i < MMP_BPF_SLOTS && lacks; i++)
		mmp_bpf_policies[i].lacks = lacks;
}

/*
 * Waits for the worker when the module is unloaded. All programs are gone by
 * then, but the worker may not have freed the slot of the last program yet.
 */
void mmp_bpf_slots_exit(void)
{
	flush_delayed_work(&tidying);
	cancel_delayed_work_sync(&tidying);
}
