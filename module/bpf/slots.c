// SPDX-License-Identifier: GPL-2.0
/*
 * Slots for programs, each a policy of anon_order while it has one.
 *
 * A fault calls the program itself, not by the trampoline of struct_ops, which takes more
 * instructions than all else here. So the slot has a reference of its own to the program.
 *
 * A program may go at any time: its link is detached, or its loader has ended. Then the next
 * fault is as at stock, which takes neither memory nor a lock of writers. A worker puts the
 * profiles to stock afterwards.
 */
#include <linux/cleanup.h>
#include <linux/filter.h>
#include <linux/percpu.h>
#include <linux/string.h>
#include <linux/workqueue.h>

#include "../control/control.h"
#include "bpf.h"

/**
 * struct bpf_slot - a place for a program
 * @ops: the program; %NULL answers stock
 * @owner: what is registered; under slots_lock
 * @held: our reference to its program, until nobody can be in it; %NULL in a free slot. Under
 *	mmp_lock.
 * @name: of the policy; empty in a free slot
 * @knobs: what its knobs are
 * @error: what the program itself has reported
 */
struct bpf_slot {
	const struct mmp_anon_order_ops __rcu *ops;
	const void *owner;
	struct bpf_prog *held;
	char name[MMP_BPF_NAME];
	struct mmp_bpf_knob knobs[MMP_BPF_KNOBS];
	char error[sizeof_field(struct mmp_bpf_facts, error)];
};

static struct bpf_slot slots[MMP_BPF_SLOTS];
static struct mmp_knob slot_knobs[MMP_BPF_SLOTS][MMP_BPF_KNOBS];
static_assert(MMP_BPF_SLOTS == 4);	/* as core.c lists them */
static DEFINE_PER_CPU(u64, clamped[MMP_BPF_SLOTS]);
static DEFINE_SPINLOCK(slots_lock);	/* taken inside mmp_lock, and in faults */
static const char nobody[] = "no program is loaded";

#define slot_policy(slot)	(&mmp_bpf_policies[(slot) - slots])

static void bpf_tidy(struct work_struct *work);
static DECLARE_DELAYED_WORK(tidying, bpf_tidy);

/*
 * Functions of their own, which the callbacks end in: they save no registers for these.
 * Context: RCU read side, which keeps the program; it must stay on a CPU, for its maps.
 */
static noinline struct mmp_decision bpf_run(const struct vm_fault *vmf, enum mm_policy_site site,
					    const struct mmp_anon_order_ops *ops, unsigned int nr,
					    const u32 *knob)
{
	const struct mmp_fault fault = mmp_bpf_fault(vmf, site, ops, knob);
	const u64 args[] = { (unsigned long)&fault };
	struct mmp_decision d;
	u32 answer;
	bool cut;

	preempt_disable();
	answer = MMP_BPF ? bpf_prog_run(ops->prog, args) : 0;
	preempt_enable();
	d = mmp_bpf_decision(ops, answer, &cut);
	if (unlikely(cut))
		this_cpu_inc(clamped[nr]);
	return d;
}

static noinline struct mmp_decision bpf_run_if_near(const struct vm_fault *vmf,
						    enum mm_policy_site site,
						    const struct mmp_anon_order_ops *ops,
						    unsigned int nr, const u32 *knob)
{
	if (!mmp_anon_order_near(vmf))
		return (struct mmp_decision){ .reason = MMP_ALONE };
	return bpf_run(vmf, site, ops, nr, knob);
}

static unsigned int bpf_cap(unsigned int nr)
{
	const struct mmp_anon_order_ops *ops = rcu_dereference(slots[nr].ops);

	return ops ? ops->max_order : MMP_MAX_ORDER;
}

#define BPF_CALLBACKS(nr)							\
static struct mmp_decision bpf_order_##nr(const struct vm_fault *vmf,		\
					  enum mm_policy_site site, const u32 *knob) \
{										\
	const struct mmp_anon_order_ops *ops = rcu_dereference(slots[nr].ops);	\
										\
	if (unlikely(!ops))							\
		return (struct mmp_decision){ .order = MMP_ORDER_STOCK };	\
	if (ops->flags & MMP_BPF_IF_NEAR)					\
		return bpf_run_if_near(vmf, site, ops, nr, knob);		\
	return bpf_run(vmf, site, ops, nr, knob);				\
}										\
static unsigned int bpf_cap_##nr(const struct vm_area_struct *vma, const u32 *knob) \
{										\
	return bpf_cap(nr);							\
}

BPF_CALLBACKS(0)
BPF_CALLBACKS(1)
BPF_CALLBACKS(2)
BPF_CALLBACKS(3)

#define BPF_POLICY(nr) {							\
	.name = slots[nr].name, .point = MM_POLICY_ANON_ORDER, .lacks = nobody,	\
	.loadable = true, .knobs = slot_knobs[nr], .max_knobs = MMP_BPF_KNOBS,	\
	.anon_order = bpf_order_##nr, .cap = bpf_cap_##nr,			\
}

struct mmp_policy mmp_bpf_policies[MMP_BPF_SLOTS] = {
	BPF_POLICY(0), BPF_POLICY(1), BPF_POLICY(2), BPF_POLICY(3),
};

/* No fault asks the program any more. The caller holds slots_lock. */
static void slot_stop(struct bpf_slot *slot, const char *lacks)
{
	RCU_INIT_POINTER(slot->ops, NULL);
	WRITE_ONCE(slot_policy(slot)->lacks, lacks);
	mod_delayed_work(mmp_unbound_wq, &tidying, 0);
}

/* Faults ask @ops from now on. The caller holds mmp_lock. */
static void slot_start(struct bpf_slot *slot, const struct mmp_anon_order_ops *ops,
		       struct bpf_prog *held)
{
	slot->held = held;
	slot_policy(slot)->max_order = ops->max_order;
	spin_lock(&slots_lock);
	slot->owner = ops;
	slot->error[0] = '\0';
	rcu_assign_pointer(slot->ops, ops);
	WRITE_ONCE(slot_policy(slot)->lacks, NULL);
	spin_unlock(&slots_lock);
}

static void slot_set_knobs(struct bpf_slot *slot, const struct mmp_bpf_knob *knobs)
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

/* Puts the profiles of a slot without a program to stock, and makes it free. */
static int slot_tidy(struct bpf_slot *slot)
{
	struct mmp_policy *policy = slot_policy(slot);
	int err;

	guard(mutex)(&mmp_files_lock);
	scoped_guard(mutex, &mmp_lock) {
		if (rcu_access_pointer(slot->ops) || !slot->held)
			return 0;
		err = mmp_point_to_stock(MM_POLICY_ANON_ORDER, policy);
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

/* Without memory the faults are as at stock all the same; it is tried again later. */
static void bpf_tidy(struct work_struct *work)
{
	int err = 0;

	for (int i = 0; i < MMP_BPF_SLOTS; i++)
		err = slot_tidy(&slots[i]) ?: err;
	if (err)
		mod_delayed_work(mmp_unbound_wq, &tidying, HZ);
}

/**
 * mmp_bpf_fail - a program has reported an error: it is not asked any more
 * @ops: which; nothing happens if another one has replaced it meanwhile
 * @text: for the one who loaded it
 *
 * Context: anywhere in a fault.
 */
void mmp_bpf_fail(const void *ops, const char *text)
{
	spin_lock(&slots_lock);
	for (int i = 0; i < MMP_BPF_SLOTS; i++) {
		struct bpf_slot *slot = &slots[i];

		if (rcu_access_pointer(slot->ops) != ops)
			continue;
		strscpy(slot->error, *text ? text : "no reason");
		strreplace(slot->error, '\n', ' ');
		slot_stop(slot, slot->error);
	}
	spin_unlock(&slots_lock);
}

static struct bpf_slot *slot_of(const void *owner)
{
	for (int i = 0; i < MMP_BPF_SLOTS; i++)
		if (READ_ONCE(slots[i].owner) == owner)
			return &slots[i];
	return NULL;
}

static struct bpf_slot *slot_free(void)
{
	for (int i = 0; i < MMP_BPF_SLOTS; i++)
		if (!slots[i].held)
			return &slots[i];
	return NULL;
}

/**
 * mmp_bpf_reg - make a policy of a program
 * @ops: the program
 * @take: gives its reference
 *
 * Context: may sleep.
 * Return: 0; -EBUSY after the lease has expired; -EEXIST if the name is taken; -ENOSPC
 *	without a free slot; -ESTALE if there is no reference any more; -ENOMEM.
 */
int mmp_bpf_reg(struct mmp_anon_order_ops *ops, struct bpf_prog *(*take)(const void *ops))
{
	struct bpf_slot *slot;
	struct bpf_prog *prog;
	int err, cpu;

	guard(mutex)(&mmp_files_lock);
	guard(mutex)(&mmp_lock);
	err = mmp_may_change(NULL);
	if (err)
		return err;
	if (mmp_policy_find(MM_POLICY_ANON_ORDER, ops->name))
		return -EEXIST;
	slot = slot_free();
	if (!slot)
		return -ENOSPC;
	prog = take(ops);
	if (!prog)
		return -ESTALE;
	strscpy(slot->name, ops->name);
	for_each_possible_cpu(cpu)
		per_cpu(clamped[slot - slots], cpu) = 0;
	slot->held = prog;
	slot_set_knobs(slot, ops->knobs);
	err = mmp_policy_files_add(slot_policy(slot));
	if (err)
		mod_delayed_work(mmp_unbound_wq, &tidying, 0);
	else
		slot_start(slot, ops, prog);
	return err;
}

/**
 * mmp_bpf_replace - another program in place of one; who has the policy keeps it
 * @ops: the new one, of the same name
 * @old: the old one
 * @take: gives the reference of the new one
 *
 * Context: may sleep.
 * Return: 0, -EBUSY, -ESTALE; -ENOENT if @old has no slot; -EINVAL for another name;
 *	-EXDEV for other knobs.
 */
int mmp_bpf_replace(struct mmp_anon_order_ops *ops, const void *old,
		    struct bpf_prog *(*take)(const void *ops))
{
	struct bpf_prog *prog, *before;
	struct bpf_slot *slot;
	int err;

	guard(mutex)(&mmp_lock);
	err = mmp_may_change(NULL);
	if (err)
		return err;
	slot = slot_of(old);
	if (!slot)
		return -ENOENT;
	if (strcmp(slot->name, ops->name))
		return -EINVAL;
	if (memcmp(slot->knobs, ops->knobs, sizeof(slot->knobs)))
		return -EXDEV;
	prog = take(ops);
	if (!prog)
		return -ESTALE;
	before = slot->held;
	slot_start(slot, ops, prog);
	mmp_profiles_switch();
	synchronize_rcu();
	bpf_prog_put(before);
	return 0;
}

/**
 * mmp_bpf_unreg - a program goes
 * @ops: which
 *
 * Waits for nobody. The kernel keeps @ops for a grace period after this.
 */
void mmp_bpf_unreg(const void *ops)
{
	struct bpf_slot *slot;

	spin_lock(&slots_lock);
	slot = slot_of(ops);
	if (slot) {
		slot->owner = NULL;
		slot_stop(slot, nobody);
	}
	spin_unlock(&slots_lock);
}

/**
 * mmp_bpf_look - what a slot has
 * @nr: which slot
 * @facts: where to; without a program, all zero
 *
 * Context: may sleep.
 */
void mmp_bpf_look(unsigned int nr, struct mmp_bpf_facts *facts)
{
	const struct bpf_slot *slot = &slots[nr];
	int cpu;

	*facts = (struct mmp_bpf_facts){};
	guard(mutex)(&mmp_lock);
	if (!slot->held || !READ_ONCE(slot->owner))
		return;
	strscpy(facts->name, slot->name);
	facts->program = slot->held->aux->id;
	for_each_possible_cpu(cpu)
		facts->clamped += READ_ONCE(per_cpu(clamped[nr], cpu));
	spin_lock(&slots_lock);
	strscpy(facts->error, slot->error);
	spin_unlock(&slots_lock);
}

/* Why no program can be loaded on this kernel, if so. */
void mmp_bpf_slots_init(const char *lacks)
{
	for (int i = 0; i < MMP_BPF_SLOTS && lacks; i++)
		mmp_bpf_policies[i].lacks = lacks;
}

/* No program is there any more, but the last one may have gone just now. */
void mmp_bpf_slots_exit(void)
{
	flush_delayed_work(&tidying);
	cancel_delayed_work_sync(&tidying);
}
