// SPDX-License-Identifier: GPL-2.0
/* Where functions and variables are that the kernel does not export. */
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/string.h>

#include "direct.h"

/*
 * A probe is looked up by name, and its address stays in it even if nothing can be
 * probed there, as in a variable. None is ever armed.
 */
static void *symbol_look_up(const char *name)
{
	struct kprobe probe = { .symbol_name = name, .flags = KPROBE_FLAG_DISABLED };

	if (!register_kprobe(&probe))
		unregister_kprobe(&probe);
	return probe.addr;
}

/**
 * mmp_symbol - find something in the running kernel
 * @name: its name
 *
 * Context: may sleep.
 * Return: its address, or %NULL.
 */
void *mmp_symbol(const char *name)
{
	char found[KSYM_NAME_LEN];
	void *address = symbol_look_up(name);

	snprintf(found, sizeof(found), "%ps", address);
	return !strcmp(found, name) ? address : NULL;
}
