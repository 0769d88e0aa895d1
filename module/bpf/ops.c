// SPDX-License-Identifier: GPL-2.0
/*
 * The struct_ops of programs that are policies: rules for the verifier,
 * registration and removal.
 *
 * The module calls the program directly, so it needs a reference to it.
 * ops_init_member() takes one, because only there the program's fd is known.
 * But user space may free the struct_ops map without ever registering it, and
 * no callback reports that. So latest_prog keeps the reference of the latest
 * program. Registration takes the reference over. Without registration, a
 * worker drops it once it is the only reference left, because then no map has
 * the program any more.
 */
#include <linux/bpf.h>
#include <linux/bpf_verifier.h>
#include <linux/btf.h>
#include <linux/cleanup.h>
#include <linux/filter.h>
#include <linux/mutex.h>
#include <linux/workqueue.h>

#include "../control/control.h"
#include "bpf.h"

/* time between two checks whether user space has freed a struct_ops map */
#define AGAIN	(2 * HZ)

static DEFINE_MUTEX(latest_lock);
static const void *latest_ops;		/* under latest_lock */
static struct bpf_prog *latest_prog;	/* under latest_lock */
static struct btf *ops_btf;

static void latest_set(const void *ops, struct bpf_prog *prog)
{
	lockdep_assert_held(&latest_lock);
	if (latest_prog)
		bpf_prog_put(latest_prog);
	latest_ops = ops;
	latest_prog = prog;
}

static void ops_forget(struct work_struct *work)
{
	guard(mutex)(&latest_lock);
	if (latest_prog && atomic64_read(&latest_prog->aux->refcnt) > 1)
		mod_delayed_work(mmp_unbound_wq, to_delayed_work(work), AGAIN);
	else
		latest_set(NULL, NULL);
}

static DECLARE_DELAYED_WORK(forgetting, ops_forget);

static struct bpf_prog *ops_take(const void *ops)
{
	struct bpf_prog *prog;

	guard(mutex)(&latest_lock);
	if (latest_ops != ops)
		return NULL;
	prog = latest_prog;
	latest_ops = NULL;
	latest_prog = NULL;
	return prog;
}

/*
 * Takes a reference to the program behind an fd. Another thread may have
 * replaced the file of this fd after the kernel checked it, so this checks the
 * program again.
 */
static int ops_keep(const struct btf_type *t, struct mmp_bpf_ops *to, int file)
{
	struct bpf_prog *prog = bpf_prog_get_type_dev(file, BPF_PROG_TYPE_STRUCT_OPS, false);

	if (IS_ERR(prog))
		return PTR_ERR(prog);
	if (!prog->jited) {
		bpf_prog_put(prog);
		return -ENOEXEC;
	}
	if (prog->aux->attach_btf != ops_btf || prog->expected_attach_type ||
	    btf_type_by_id(ops_btf, prog->aux->attach_btf_id) != t) {
		bpf_prog_put(prog);
		return -EINVAL;
	}
	to->prog = prog;
	scoped_guard(mutex, &latest_lock)
		latest_set(to, prog);
	mod_delayed_work(mmp_unbound_wq, &forgetting, AGAIN);
	return 0;
}

static int ops_copy_name(char *to, const char *from)
{
	if (strnlen(from, MMP_BPF_NAME) == MMP_BPF_NAME || strpbrk(from, "\n-") ||
	    !strcmp(from, "stock") || mmp_parse_name(from, to, MMP_BPF_NAME))
		return -EINVAL;
	return 1;
}

static bool ops_text_is_line(const char *text, size_t size)
{
	return strnlen(text, size) < size && !strchr(text, '\n');
}

static bool ops_knob_is_right(const struct mmp_bpf_knob *knob)
{
	char name[sizeof(knob->name)];

	return ops_text_is_line(knob->name, sizeof(name)) && !strchr(knob->name, '-') &&
	       !mmp_parse_name(knob->name, name, sizeof(name)) &&
	       ops_text_is_line(knob->unit, sizeof(knob->unit)) &&
	       ops_text_is_line(knob->meaning, sizeof(knob->meaning)) &&
	       knob->min <= knob->def && knob->def <= knob->max;
}

static int ops_copy_knobs(struct mmp_bpf_knob *to, const struct mmp_bpf_knob *from)
{
	for (int i = 0; i < MMP_BPF_KNOBS && *from[i].name; i++) {
		if (!ops_knob_is_right(&from[i]))
			return -EDOM;
		for (int j = 0; j < i; j++)
			if (!strcmp(from[i].name, from[j].name))
				return -EDOM;
		to[i] = from[i];
	}
	return 1;
}

/*
 * Checks and copies one member of a program's struct_ops. Each error code belongs to one member, so
 * that the command mmpolicy can name the member that was refused.
 */
static int ops_init_member(const struct btf_type *t, const struct btf_member *member,
			   void *kdata, const void *udata)
{
	const struct mmp_bpf_ops *from = udata;
	struct mmp_bpf_ops *to = kdata;

	switch (member->offset / 8) {
	case offsetof(struct mmp_bpf_ops, ask):
		return from->ask ? ops_keep(t, to, (unsigned long)from->ask) : -ENODATA;
	case offsetof(struct mmp_bpf_ops, name):
		return ops_copy_name(to->name, from->name);
	case offsetof(struct mmp_bpf_ops, version):
		return from->version == MMP_BPF_VERSION ? 1 : -EPROTO;
	case offsetof(struct mmp_bpf_ops, max_order):
		to->max_order = from->max_order;
		return 1;
	case offsetof(struct mmp_bpf_ops, flags):
		to->flags = from->flags;
		return to->flags & ~MMP_BPF_IF_NEAR ? -EOPNOTSUPP : 1;
	case offsetof(struct mmp_bpf_ops, knobs):
		return ops_copy_knobs(to->knobs, from->knobs);
	}
	return 0;
}

/*
 * Returns 0, or an errno for an instruction that can run for longer than the
 * verifier has counted. Each errno stands for one kind of instruction;
 * REFUSED_MEMBER in userspace/src/mmpolicy/host/bpf.py has their texts.
 */
static int ops_check_insn(const struct bpf_insn *insn)
{
	/* may_goto bounds a loop by a count of millions, or by time, and can be nested */
	if (insn->code == (BPF_JMP | BPF_JCOND))
		return -ELOOP;
	/* the kernel's own kfuncs may loop or wait: iterators, workqueues, exceptions, locks */
	if (insn->code == (BPF_JMP | BPF_CALL) && insn->src_reg == BPF_PSEUDO_KFUNC_CALL &&
	    !insn->off)
		return -EACCES;
	/* an access to an arena may fault, and a process can change the arena concurrently */
	if (insn->code == (BPF_ALU64 | BPF_MOV | BPF_X) && insn->off == BPF_ADDR_SPACE_CAST)
		return -EADDRNOTAVAIL;
	return 0;
}

/*
 * Checks the instructions of a program. The program runs with preemption off,
 * so it must not sleep and must end soon. The verifier walks through each
 * iteration of a plain loop, which bounds such loops. Other loops can be very
 * long. ops_helper() offers no helper with callbacks, timers or tail calls, and
 * ops_check_insn() refuses the other instructions that loop.
 */
static int ops_check_member(const struct btf_type *t, const struct btf_member *member,
			    const struct bpf_prog *prog)
{
	int err = 0;

	if (prog->sleepable)
		return -EINVAL;
	for (u32 i = 0; i < prog->len && !err; i++)
		err = ops_check_insn(&prog->insnsi[i]);
	return err;
}

static const struct bpf_func_proto *ops_helper(enum bpf_func_id id, const struct bpf_prog *prog)
{
	switch (id) {
	case BPF_FUNC_map_lookup_elem:
	case BPF_FUNC_map_update_elem:
	case BPF_FUNC_map_delete_elem:
	case BPF_FUNC_map_lookup_percpu_elem:
	case BPF_FUNC_ringbuf_output:
	case BPF_FUNC_ringbuf_reserve:
	case BPF_FUNC_ringbuf_submit:
	case BPF_FUNC_ringbuf_discard:
	case BPF_FUNC_get_prandom_u32:
	case BPF_FUNC_get_smp_processor_id:
	case BPF_FUNC_get_numa_node_id:
	case BPF_FUNC_get_current_pid_tgid:
	case BPF_FUNC_ktime_get_ns:
	case BPF_FUNC_jiffies64:
	case BPF_FUNC_trace_printk:
		return bpf_base_func_proto(id, prog);
	default:
		return NULL;
	}
}

static bool ops_is_valid_access(int off, int size, enum bpf_access_type type,
				const struct bpf_prog *prog, struct bpf_insn_access_aux *info)
{
	return !off && size == sizeof(u64) && type == BPF_READ &&
	       btf_ctx_access(off, size, type, prog, info);
}

static const struct bpf_verifier_ops ops_verifier = {
	.get_func_proto = ops_helper,
	.is_valid_access = ops_is_valid_access,
};

static int ops_init(struct btf *btf)
{
	ops_btf = btf;
	return 0;
}

/*
 * Registers a program. Refuses one without a link, which would stay registered
 * after its last user has gone.
 */
static int ops_reg(enum mm_policy_point point, const void *kdata, const struct bpf_link *link)
{
	return link ? mmp_bpf_reg(point, kdata, ops_take(kdata)) : -ENOLINK;
}

static void ops_unreg(void *kdata, struct bpf_link *link)
{
	mmp_bpf_unreg(kdata);
}

static int ops_update(void *kdata, void *old, struct bpf_link *link)
{
	return mmp_bpf_replace(kdata, old, ops_take(kdata));
}

static u32 ops_stub_anon_order(const struct mmp_fault *fault)
{
	return 0;
}

static u32 ops_stub_thp_gfp(const struct mmp_effort *effort)
{
	return 0;
}

static u32 ops_stub_compact(const struct mmp_compaction *compaction)
{
	return 0;
}

/* Defines the struct_ops of a point; @function is the program's function in it. */
#define OPS(point, id, function)						\
static int ops_reg_##point(void *kdata, struct bpf_link *link)			\
{										\
	return ops_reg(id, kdata, link);					\
}										\
static struct mmp_##point##_ops ops_stubs_##point = { .function = ops_stub_##point }; \
static struct bpf_struct_ops ops_##point = {					\
	.verifier_ops = &ops_verifier,						\
	.init = ops_init,							\
	.check_member = ops_check_member,					\
	.init_member = ops_init_member,						\
	.reg = ops_reg_##point,							\
	.unreg = ops_unreg,							\
	.update = ops_update,							\
	.cfi_stubs = &ops_stubs_##point,					\
	.name = "mmp_" #point "_ops",						\
	.owner = THIS_MODULE,							\
};										\
static_assert(!offsetof(struct mmp_##point##_ops, function))	/* so expected_attach_type is 0 */

OPS(anon_order, MM_POLICY_ANON_ORDER, order);
OPS(thp_gfp, MM_POLICY_THP_GFP, effort);
OPS(compact, MM_POLICY_COMPACT, compact);

/*
 * Registers the struct_ops of all points. Unloading the module removes them, so
 * there is no unregister call.
 */
int mmp_bpf_ops_init(void)
{
	return register_bpf_struct_ops(&ops_anon_order, mmp_anon_order_ops) ?:
	       register_bpf_struct_ops(&ops_thp_gfp, mmp_thp_gfp_ops) ?:
	       register_bpf_struct_ops(&ops_compact, mmp_compact_ops);
}

void mmp_bpf_ops_exit(void)
{
	cancel_delayed_work_sync(&forgetting);
	guard(mutex)(&latest_lock);
	latest_set(NULL, NULL);
}
