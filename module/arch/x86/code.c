// SPDX-License-Identifier: GPL-2.0
/*
 * Decodes machine code of the kernel, instruction by instruction, to leave out
 * all parts that differ from boot to boot (code.h). For an operand that is a
 * kernel address, the symbol's name is hashed in place of the address.
 */
#include <linux/kallsyms.h>
#include <linux/static_call.h>
#include <linux/string.h>
#include <asm/insn.h>

#include "../../provider/direct.h"
#include "code.h"

/* callback of mmp_code_begin(); needs no lock: one thread loads the module at a time */
static mmp_add_fn add;

/*
 * insn_decode() is not exported, so its address is found at run time. This is a
 * static call, as an indirect one would trap where the kernel has sealed the
 * function's ENDBR (indirect branch tracking).
 */
DEFINE_STATIC_CALL_NULL(mmp_insn_decode, insn_decode);

/*
 * Passes the name of the symbol that begins at @address to the callback, which hashes it; no bytes
 * if no symbol begins there.
 */
static void add_name_of(const void *address)
{
	static char text[KSYM_SYMBOL_LEN];
	char *end;

	sprint_symbol(text, (unsigned long)address);
	end = strstr(text, "+0x0/");
	add(text, end ? end - text : 0);
}

static void add_value(const struct insn_field *value)
{
	if (value->nbytes < 4 || !mmp_code_is_address(value->value))
		add(value->bytes, value->nbytes);
}

static void add_instruction(struct insn *insn, const void *next)
{
	u8 condition = insn->opcode.bytes[insn->opcode.nbytes - 1] & 0xf;
	int i;

	if (mmp_code_is_patched(insn->opcode.value, insn->modrm.value))
		return;
	for (i = 0; i < insn->prefixes.nbytes && i < 4; i++)
		if (!mmp_code_prefix_is_patched(insn->prefixes.bytes[i]))
			add(&insn->prefixes.bytes[i], 1);
	add(insn->rex_prefix.bytes, insn->rex_prefix.nbytes);
	add(insn->vex_prefix.bytes, insn->vex_prefix.nbytes);
	if (mmp_code_jumps_on_condition(insn->opcode.value)) {
		add("if", 2);
		add(&condition, 1);
		return;
	}
	add(insn->opcode.bytes, insn->opcode.nbytes);
	add(insn->modrm.bytes, insn->modrm.nbytes);
	add(insn->sib.bytes, insn->sib.nbytes);
	if (insn->modrm.nbytes && mmp_code_names_place(insn->modrm.value))
		add_name_of(next + insn->displacement.value);
	else
		add_value(&insn->displacement);
	/* a 64-bit immediate is not hashed, as it may differ from boot to boot */
	if (!insn->immediate2.nbytes)
		add_value(&insn->immediate);
}

/**
 * mmp_code_begin - set the callback for mmp_code_add()
 * @to: called with each part of the code
 *
 * Context: after mmp_needs_find(); text_mutex is not held.
 */
void mmp_code_begin(mmp_add_fn to)
{
	add = to;
	static_call_update(mmp_insn_decode, mmp_found(MMP_NEED_decode));
}

/**
 * mmp_code_add - pass the parts of a function's code that are the same at each
 * boot to the callback
 * @at: the code of the function
 * @size: its size in bytes
 *
 * Context: text_mutex is held.
 */
void mmp_code_add(const void *at, size_t size)
{
	const void *end = at + size;
	struct insn insn;

	for (; at < end; at += insn.length) {
		const int left = min_t(long, end - at, MAX_INSN_SIZE);

		if (static_call(mmp_insn_decode)(&insn, at, left, INSN_MODE_KERN) < 0)
			break;
		add_instruction(&insn, at + insn.length);
	}
}
