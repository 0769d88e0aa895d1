// SPDX-License-Identifier: GPL-2.0
/*
 * For tests alone: simulates bugs of other code that affect ftrace. kill=1:
 * ftrace turns itself off, as after an internal error. The other changes last
 * until this module is unloaded. unpatch=FUNCTION: a NOP replaces the call that
 * ftrace has patched into the function; nothing else may patch the function in
 * the meantime. change=FUNCTION: the instruction after that call is replaced;
 * nothing may call the function in the meantime. rename=NAME: the last letter
 * of this name in the kernel's BTF is changed. newer=1: the first type in BTF
 * gets a kind that does not exist.
 */
#include <linux/io.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/static_call.h>
#include <linux/stop_machine.h>
#include <linux/string.h>
#include <linux/vmalloc.h>
#include <uapi/linux/btf.h>
#include <asm/cacheflush.h>

static bool kill;
module_param(kill, bool, 0);
static char *unpatch;
module_param(unpatch, charp, 0);

static char *change;
module_param(change, charp, 0);

static char *rename;
module_param(rename, charp, 0);

static bool newer;
module_param(newer, bool, 0);

#ifdef CONFIG_X86
#include <asm/ibt.h>
static const u8 nop[MCOUNT_INSN_SIZE] = { BYTES_NOP5 };
/*
 * bytes from the address of a kprobe, which is after ENDBR, to the ftrace call
 */
#define AT	0
#else
static const u8 nop[MCOUNT_INSN_SIZE] = { 0x1f, 0x20, 0x03, 0xd5 };
/*
 * bytes from the address of a kprobe to the ftrace call, which follows MOV X9,
 * X30
 */
#define AT	4
#endif

static u8 was[MCOUNT_INSN_SIZE + 1], is[MCOUNT_INSN_SIZE + 1];
static u8 *site;	/* writable alias of the ftrace call */
static char *byte;	/* writable alias of a byte of the kernel's BTF */
static char flip = 1;	/* bits to flip in the byte */

static void nothing(void)
{
}

DEFINE_STATIC_CALL(meddle_ftrace_kill, nothing);

static void *meddle_find(const char *name)
{
	struct kprobe probe = { .symbol_name = name, .flags = KPROBE_FLAG_DISABLED };

	if (!register_kprobe(&probe))
		unregister_kprobe(&probe);
	return probe.addr;
}

/* Maps a read-only place of the kernel at a writable address. */
static void *meddle_writable(const void *at)
{
	unsigned long address = (unsigned long)at;
	struct page *page = pfn_to_page(PHYS_PFN(__pa_symbol(address)));
	void *alias;

	if (!address)
		return NULL;
	alias = vmap(&page, 1, VM_MAP, PAGE_KERNEL);
	return alias ? alias + offset_in_page(address) : NULL;
}

static int meddle_write(void *text)
{
	memcpy(site, text, sizeof(was));
	flush_icache_range((unsigned long)site, (unsigned long)site + sizeof(was));
	return 0;
}

static const char *meddle_byte(const char *name)
{
	const struct btf_header *btf = meddle_find("__start_BTF");
	const char *at, *end;

	if (!btf || btf->magic != BTF_MAGIC)
		return NULL;
	if (newer) {	/* the highest byte holds the kind */
		const struct btf_type *first = (const void *)btf + btf->hdr_len + btf->type_off;

		flip = 0x1f;
		return (const char *)&first->info + 3;
	}
	at = (const char *)btf + btf->hdr_len + btf->str_off;
	for (end = at + btf->str_len; at < end; at += strlen(at) + 1)
		if (!strcmp(at, name))
			return at + strlen(at) - 1;
	return NULL;
}

static int __init meddle_btf(void)
{
	byte = meddle_writable(meddle_byte(rename));
	if (!byte)
		return -ENOENT;
	*byte ^= flip;
	return 0;
}

/*
 * Applies the change that the parameters select. It finds the ftrace call of a
 * function by a kprobe.
 */
static int __init meddle_init(void)
{
	void *found = meddle_find("ftrace_kill");

	if (kill) {
		if (!found)
			return -ENOENT;
		static_call_update(meddle_ftrace_kill, found);
		static_call(meddle_ftrace_kill)();
	}
	if (rename || newer)
		return meddle_btf();
	if (!unpatch && !change)
		return 0;
	found = meddle_find(unpatch ?: change);
	site = found ? meddle_writable(found + AT) : NULL;
	if (!site)
		return -ENOENT;
	memcpy(was, site, sizeof(was));
	memcpy(is, site, sizeof(is));
	if (unpatch)
		memcpy(is, nop, sizeof(nop));
	else
		is[MCOUNT_INSN_SIZE] ^= 1;
	return stop_machine(meddle_write, is, NULL);
}
module_init(meddle_init);

static void __exit meddle_exit(void)
{
	if (byte) {
		*byte ^= flip;
		vunmap((void *)((unsigned long)byte & PAGE_MASK));
	}
	if (!site)
		return;
	stop_machine(meddle_write, was, NULL);
	vunmap((void *)((unsigned long)site & PAGE_MASK));
}
module_exit(meddle_exit);

MODULE_DESCRIPTION("Trouble for ftrace, for tests of mmpolicy");
MODULE_LICENSE("GPL");
