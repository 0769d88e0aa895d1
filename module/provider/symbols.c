// SPDX-License-Identifier: GPL-2.0
/* Addresses of functions and variables that the kernel does not export. */
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/string.h>

#include "direct.h"

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
