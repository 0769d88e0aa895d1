// SPDX-License-Identifier: GPL-2.0
/* Functions of the kernel call us: is that possible, begin, end. */
#include <linux/delay.h>
#include <linux/ftrace.h>
#include <linux/kernel.h>
#include <linux/rcupdate.h>
#include <linux/string.h>
#include <asm/ibt.h>

#include "direct.h"

/**
 * mmp_call_check - see whether a function is what we know
 * @function: its name
 * @prototype: as mmp_prototype() has it
 * @reason: why not
 * @size: of that
 *
 * Context: may sleep; mmp_prototypes_init() before.
 * Return: 0 or -EOPNOTSUPP.
 */
int mmp_call_check(const char *function, const char *prototype, char *reason,
		   size_t size)
{
	char text[128];

	if (!mmp_prototype(function, text, sizeof(text)))
		snprintf(reason, size, "the kernel has no function %s", function);
	else if (strcmp(text, prototype))
		snprintf(reason, size, "%s has become %s", function, text);
	else if (!mmp_symbol(function))
		snprintf(reason, size, "%s is not to be found", function);
	else
		return 0;
	return -EOPNOTSUPP;
}

/**
 * mmp_call_find - find the functions, and see whether they are what we know
 * @call: which
 * @reason: why not
 * @size: of that
 *
 * Context: as mmp_call_check().
 * Return: 0 or -EOPNOTSUPP.
 */
int mmp_call_find(struct mmp_call *call, char *reason, size_t size)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(call->function) && call->function[i]; i++) {
		const char *function = call->function[i];

		if (mmp_call_check(function, call->prototype[i], reason, size))
			return -EOPNOTSUPP;
		call->at[i] = (unsigned long)mmp_symbol(function);
	}
	return 0;
}

/**
 * mmp_call_rest - where a function goes on after it has called us
 * @call: which; its first function
 *
 * Context: after mmp_call_find().
 * Return: to be called in place of the function, but directly: no function begins there.
 */
void *mmp_call_rest(const struct mmp_call *call)
{
	void *at = (void *)call->at[0];

	if (mmp_is_endbr(at))
		at += ENDBR_INSN_SIZE;
	return at + MCOUNT_INSN_SIZE;
}

/**
 * mmp_call_begin - from now on the functions call us
 * @call: which
 *
 * Context: may sleep. A call that has begun before goes on without us.
 * Return: 0, -EBUSY if another direct caller is there, or another error of ftrace.
 */
int mmp_call_begin(struct mmp_call *call)
{
	int i, err = 0;

	call->ops = (struct ftrace_ops){};	/* ftrace leaves it used */
	for (i = 0; i < ARRAY_SIZE(call->at) && call->at[i] && !err; i++)
		err = ftrace_set_filter_ip(&call->ops, call->at[i], 0, 0);
	if (!err)
		err = register_ftrace_direct(&call->ops, (unsigned long)call->entry);
	if (err)
		ftrace_free_filter(&call->ops);
	return err;
}

/*
 * Nobody enters any more, so the sum only falls. Who leaves while it is taken may be
 * counted still, but nobody who is inside is missed.
 */
static bool somebody_inside(const long __percpu *inside)
{
	long sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*per_cpu_ptr(inside, cpu));
	return sum;
}

/**
 * mmp_call_end - the functions do not call us any more
 * @call: which; if it has begun
 *
 * Context: may sleep. Nobody is in our entry any more when this returns.
 */
void mmp_call_end(struct mmp_call *call)
{
	unregister_ftrace_direct(&call->ops, (unsigned long)call->entry, true);
	synchronize_rcu_tasks();	/* who was in the entry has entered, or gone on */
	if (!call->inside)
		return;
	while (somebody_inside(call->inside))
		msleep(20);
	synchronize_rcu_tasks();	/* for their way out of it */
}
