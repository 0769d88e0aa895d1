// SPDX-License-Identifier: GPL-2.0
/* Finds addresses of functions and variables that the kernel does not export. */
#include <linux/kallsyms.h>
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/static_call.h>
#include <linux/string.h>

#include "direct.h"

/*
 * The kernel does not export this function. The module calls it by a static
 * call, because indirect branch tracking forbids an indirect call.
 */
DEFINE_STATIC_CALL_NULL(mmp_each_symbol, kallsyms_on_each_match_symbol);

/*
 * Looks a symbol up by registering a disabled kprobe. Its address is filled in
 * even if nothing can be probed there: in a variable, or at the second byte of
 * a function. No probe is ever armed. If registration succeeds, unregistering
 * waits for all CPUs.
 */
static void *symbol_look_up(const char *name)
{
	struct kprobe probe = {
		.symbol_name = name, .offset = 1, .flags = KPROBE_FLAG_DISABLED,
	};

	if (!register_kprobe(&probe))
		unregister_kprobe(&probe);
	return probe.addr ? (void *)probe.addr - probe.offset : NULL;
}

static int symbol_is_second(void *seen, unsigned long address)
{
	return (*(int *)seen)++;
}

/*
 * Returns true if no other symbol has this name. Static functions of several
 * files may share one, and a look-up returns the first.
 */
static bool symbol_is_alone(const char *name)
{
	int seen = 0;

	if (!static_call_query(mmp_each_symbol))
		static_call_update(mmp_each_symbol,
				   symbol_look_up("kallsyms_on_each_match_symbol"));
	return static_call_query(mmp_each_symbol) &&
	       !static_call(mmp_each_symbol)(symbol_is_second, name, &seen);
}

/**
 * mmp_symbol - find the address of a kernel symbol
 * @name: name of the symbol
 *
 * Context: may sleep.
 * Return: its address, or %NULL if there is none or more than one.
 */
void *mmp_symbol(const char *name)
{
	char found[KSYM_NAME_LEN];
	void *address = symbol_look_up(name);

	snprintf(found, sizeof(found), "%ps", address);
	return !strcmp(found, name) && symbol_is_alone(name) ? address : NULL;
}
