/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Direct ftrace calls: functions of the kernel call an entry of ours before they run,
 * which may change one of their arguments. Each file here uses only what stands above
 * it in this list.
 */
#ifndef MMPOLICY_DIRECT_H
#define MMPOLICY_DIRECT_H

#include <linux/ftrace.h>

#include "provider.h"

/* symbols.c: where things are in the running kernel */
void *mmp_symbol(const char *name);

/* prototype.c: what its BTF says of functions */
int mmp_prototypes_init(void);
void mmp_prototypes_exit(void);
bool mmp_prototype(const char *function, char *text, size_t size);

/**
 * struct mmp_call - functions of the kernel that call an entry of ours
 * @entry: where to, in entry.S
 * @function: their names; the rest is %NULL
 * @prototype: of each, as mmp_prototype() has it
 * @ops: ftrace's
 * @at: where the functions are; 0 for none
 */
struct mmp_call {
	void *entry;
	const char *function[2];
	const char *prototype[2];
	struct ftrace_ops ops;
	unsigned long at[2];
};

/* call.c */
int mmp_call_find(struct mmp_call *call, char *reason, size_t size);
int mmp_call_begin(struct mmp_call *call);
void mmp_call_end(struct mmp_call *call);

/* ask.c: who is asked */
extern const struct mm_policy_ops __rcu *mmp_asked[MM_POLICY_POINTS];

/* sizes.c: what sysfs enables for anonymous memory */
int mmp_sizes_find(char *reason, size_t size);
int mmp_sizes_shadow(void);
void mmp_sizes_open(void);
void mmp_sizes_close(void);
void mmp_sizes_unshadow(void);
unsigned long mmp_sizes_given(unsigned long vm_flags);

/* orders.c: the point anon_order */
int mmp_orders_find(char *reason, size_t size);
int mmp_orders_hook(void);
void mmp_orders_unhook(void);

/* entry.S, and what it calls */
void mmp_entry_orders(void);
void mmp_entry_thpsize(void);
unsigned long mmp_ask_orders(struct vm_area_struct *vma, unsigned long vm_flags,
			     unsigned long tva_flags, unsigned long orders);
struct kobject *mmp_ask_thpsize(struct kobject *kobj);

#endif /* MMPOLICY_DIRECT_H */
