// SPDX-License-Identifier: GPL-2.0
/* Addresses of functions and variables that the kernel does not export. */
#include <linux/kallsyms.h>
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/static_call.h>
#include <linux/string.h>

#include "direct.h"

/* Not exported. A static call, as indirect branch tracking lets nothing else go there. */
DEFINE_STATIC_CALL_NULL(mmp_each_symbol, kallsyms_on_each_match_symbol);

/*
 * A probe is looked up by name, and its address stays in it even if nothing can be probed
 * there: in a variable, or in the middle of an instruction, as at the second byte of most
 * functions. None is ever armed. One that can be registered has to be unregistered, which
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

/* Static functions of several files may have one name, and a look-up tells of the first. */
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
 * mmp_symbol - find something in the running kernel
 * @name: its name
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
