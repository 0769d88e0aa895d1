/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Direct ftrace calls: functions of the kernel call an entry of ours before they run.
 * It may change one of their arguments, or be called in place of the function. Each file
 * here uses only what stands above it in this list.
 */
#ifndef MMPOLICY_DIRECT_H
#define MMPOLICY_DIRECT_H

#include <linux/cleanup.h>
#include <linux/ftrace.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/static_call.h>
#include <asm/ibt.h>

#include <linux/compaction.h>	/* takes mm.h for granted */

#include "../compat.h"
#include "provider.h"

struct capture_control;
struct compact_control;

/* symbols.c: where things are in the running kernel */
void *mmp_symbol(const char *name);

/* prototype.c: what its BTF says */
int mmp_prototypes_init(void);
void mmp_prototypes_exit(void);
bool mmp_prototype(const char *function, char *text, size_t size);
/* A member of a structure: its type as in a prototype; how many bytes from the beginning */
struct mmp_member {
	const char *type;
	const char *name;
	int at;
};

int mmp_members(const char *structure, struct mmp_member *member, int nr, char *reason,
		size_t size);

/**
 * struct mmp_call - functions of the kernel that call an entry of ours
 * @entry: where to, in entry.S
 * @function: their names; the rest is %NULL
 * @prototype: of each, as mmp_prototype() has it
 * @inside: if what we call there may sleep: how many are in it, see mmp_call_enter()
 * @ops: ftrace's
 * @at: where the functions are; 0 for none
 */
struct mmp_call {
	void *entry;
	const char *function[2];
	const char *prototype[2];
	long __percpu *inside;
	struct ftrace_ops ops;
	unsigned long at[2];
};

/* call.c */
int mmp_call_check(const char *function, const char *prototype, char *reason,
		   size_t size);
int mmp_call_find(struct mmp_call *call, char *reason, size_t size);
void *mmp_call_rest(const struct mmp_call *call);
int mmp_call_begin(struct mmp_call *call);
void mmp_call_end(struct mmp_call *call);

/*
 * Around all that sleeps; @inside is that of one struct mmp_call. SRCU would do as well,
 * for 27 instructions instead of two.
 */
#define mmp_call_enter(inside)	this_cpu_inc(inside)
#define mmp_call_leave(inside)	this_cpu_dec(inside)

/* ask.c: who is asked */
extern const struct mm_policy_ops __rcu *mmp_asked[MM_POLICY_POINTS];

/* For RCU it is enough that preemption is off, which takes less; not where locks sleep. */
static __always_inline void mmp_ask_begin(void)
{
	if (IS_ENABLED(CONFIG_PREEMPT_RT)) {
		rcu_read_lock();
	} else {
		preempt_disable();
		rcu_lock_acquire(&rcu_lock_map);
	}
}

static __always_inline void mmp_ask_end(void)
{
	if (IS_ENABLED(CONFIG_PREEMPT_RT)) {
		rcu_read_unlock();
	} else {
		rcu_lock_release(&rcu_lock_map);
		preempt_enable();
	}
}

DEFINE_LOCK_GUARD_0(mmp_ask, mmp_ask_begin(), mmp_ask_end())

/* What @op answers at @point, @def if nobody is asked there. */
#define mmp_ask(point, def, op, ...) ({					\
	guard(mmp_ask)();						\
	const struct mm_policy_ops *__ops = rcu_dereference(mmp_asked[point]); \
	__ops ? (*__ops).op(__VA_ARGS__) : (def);			\
})

/* sizes.c: what sysfs enables for anonymous memory */
int mmp_sizes_find(char *reason, size_t size);
int mmp_sizes_shadow(void);
void mmp_sizes_open(void);
void mmp_sizes_close(void);
void mmp_sizes_unshadow(void);
/* What the administrator has given: without and with MADV_HUGEPAGE, a bit for each order. */
extern unsigned long mmp_sizes_given[2];

/* orders.c: the point anon_order */
int mmp_orders_find(char *reason, size_t size);
int mmp_orders_hook(void);
void mmp_orders_unhook(void);

/* thp_gfp.c and so on: the points of these names */
extern struct mmp_call mmp_call_thp_gfp;
extern struct mmp_call mmp_call_compact;
extern struct mmp_call mmp_call_madv_free;
int mmp_thp_gfp_find(char *reason, size_t size);
int mmp_compact_find(char *reason, size_t size);
int mmp_madv_free_find(char *reason, size_t size);

/* orders.c: before anything of entry.S is needed */
notrace __noendbr void mmp_entry_orders(void);

/* entry.S, and what it calls */
void mmp_entry_thpsize(void);
void mmp_entry_thp_gfp(void);
void mmp_entry_compact(void);
void mmp_entry_madv_free(void);
notrace __noendbr unsigned long mmp_ask_orders(struct vm_area_struct *vma,
					       unsigned long vm_flags,
					       unsigned long why, unsigned long asked,
					       const struct vm_fault *maybe,
					       const struct vm_fault *other);
notrace __noendbr unsigned long mmp_preempted(struct vm_area_struct *vma,
					      unsigned long vm_flags, unsigned long why,
					      unsigned long answer);
struct kobject *mmp_ask_thpsize(struct kobject *kobj);
bool mmp_wants_thp_gfp(struct vm_area_struct *vma);
gfp_t mmp_instead_of_thp_gfp(struct vm_area_struct *vma);
extern int mmp_compact_direct;	/* where in it, a bool says that somebody waits */
enum compact_result mmp_instead_of_compact(struct compact_control *cc,
					   struct capture_control *capture);
/* zap_page_range_single(), or zap_vma_range(), which has no @details and does not see them */
void mmp_zap(struct vm_area_struct *vma, unsigned long address, unsigned long size,
	     struct zap_details *details);
bool mmp_wants_madv_free(void *first, unsigned long start, unsigned long *end,
			 int behavior);
bool mmp_instead_of_madv_free(void *first, unsigned long start, unsigned long *end,
			      int behavior);

#endif /* MMPOLICY_DIRECT_H */
