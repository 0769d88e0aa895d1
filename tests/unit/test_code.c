// SPDX-License-Identifier: GPL-2.0
/*
 * Fingerprint of a kernel: which machine code counts, as module/arch/x86/code.h
 * defines it.
 */
#include "check.h"
#include "arch/x86/code.h"

/* The kernel may patch in these instructions, differently at each boot: the hash skips them. */
TEST(code_that_is_patched)
{
	static const struct {
		u32 opcode;
		u8 modrm;
	} patched[] = {
		{ 0x90, 0 }, { 0x1f0f, 0x44 }, { 0x1e0f, 0xfa }, { 0xcc, 0 },
		{ 0xe8, 0 }, { 0xe9, 0 }, { 0xeb, 0 }, { 0xc3, 0 },
		{ 0xff, 0xd0 }, { 0xff, 0x15 }, { 0xff, 0xe0 },	/* call *%rax, *x(%rip), jmp */
		{ 0x31, 0xc0 }, { 0xae0f, 0xe8 }, { 0x010f, 0xcb }, { 0xb80f, 0xc7 },
		{ 0x89, 0xf8 }, { 0xc6, 0x07 }, { 0x9c, 0 }, { 0x58, 0 }, { 0xfa, 0 }, { 0xfb, 0 },
	};

	for (unsigned int i = 0; i < sizeof(patched) / sizeof(*patched); i++) {
		at("opcode %x", patched[i].opcode);
		EXPECT(mmp_code_is_patched(patched[i].opcode, patched[i].modrm), ==, true);
		EXPECT(mmp_code_jumps_on_condition(patched[i].opcode), ==, false);
	}
}

TEST(code_that_tells)
{
	static const struct {
		u32 opcode;
		u8 modrm;
	} tells[] = {
		{ 0x89, 0xd8 }, { 0x8b, 0x47 }, { 0x31, 0xdb }, { 0x85, 0xc0 }, { 0x50, 0 }, { 0x5b, 0 },
		{ 0xff, 0x07 }, { 0xff, 0x30 },			/* inc (%rdi), push (%rax) */
		{ 0xae0f, 0xf0 }, { 0xab0f, 0x07 }, { 0x0b0f, 0 }, { 0xc6, 0x47 }, { 0x83, 0xf8 },
	};

	for (unsigned int i = 0; i < sizeof(tells) / sizeof(*tells); i++) {
		at("opcode %x", tells[i].opcode);
		EXPECT(mmp_code_is_patched(tells[i].opcode, tells[i].modrm), ==, false);
		EXPECT(mmp_code_jumps_on_condition(tells[i].opcode), ==, false);
	}
}

TEST(code_that_jumps)
{
	for (u32 i = 0; i < 16; i++) {
		at("condition %u", i);
		EXPECT(mmp_code_jumps_on_condition(0x70 | i), ==, true);
		EXPECT(mmp_code_jumps_on_condition(0x800f | i << 8), ==, true);
		EXPECT(mmp_code_jumps_on_condition(0xe0 | i), ==, i < 4);
		EXPECT(mmp_code_is_patched(0x70 | i, 0), ==, false);
		EXPECT(mmp_code_is_patched(0x800f | i << 8, 0), ==, false);
	}
}

TEST(code_that_names_a_place)
{
	EXPECT(mmp_code_names_place(0x05), ==, true);
	EXPECT(mmp_code_names_place(0x3d), ==, true);
	EXPECT(mmp_code_names_place(0x45), ==, false);
	EXPECT(mmp_code_names_place(0x04), ==, false);
	EXPECT(mmp_code_is_address(0x81000000), ==, true);	/* where the kernel is linked */
	EXPECT(mmp_code_is_address(0xbfffffff), ==, true);	/* the highest with KASLR */
	EXPECT(mmp_code_is_address(0xfffffff0), ==, false);
	EXPECT(mmp_code_is_address(0x1000), ==, false);
}

TEST(code_prefix_of_one_cpu)
{
	EXPECT(mmp_code_prefix_is_patched(0xf0), ==, true);
	EXPECT(mmp_code_prefix_is_patched(0x3e), ==, true);
	EXPECT(mmp_code_prefix_is_patched(0x66), ==, false);
	EXPECT(mmp_code_prefix_is_patched(0x65), ==, false);
}

/*
 * Returns for how many of the 256 ModRM bytes an instruction with this opcode must count as
 * patched.
 */
static unsigned int second_bytes(u32 opcode)
{
	static const struct {
		u32 opcode;
		unsigned int bytes;
	} all[] = {
		{ 0x90, 256 }, { 0x1e0f, 256 }, { 0x1f0f, 256 }, { 0xcc, 256 }, { 0xe8, 256 },
		{ 0xe9, 256 }, { 0xeb, 256 }, { 0xc2, 256 }, { 0xc3, 256 }, { 0xff, 64 }, { 0x31, 1 },
		{ 0xae0f, 32 }, { 0x010f, 2 }, { 0xb80f, 256 }, { 0x0d0f, 256 }, { 0x180f, 256 },
		{ 0xc70f, 256 }, { 0xa4, 256 }, { 0xa5, 256 }, { 0xaa, 256 }, { 0xab, 256 },
		{ 0x9c, 256 }, { 0x58, 256 }, { 0xfa, 256 }, { 0xfb, 256 }, { 0x200f, 256 },
		{ 0x220f, 256 }, { 0x89, 1 }, { 0xc6, 1 },
	};

	for (unsigned int i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (all[i].opcode == opcode)
			return all[i].bytes;
	return 0;
}

TEST(code_that_is_not_listed_tells)
{
	unsigned int jumps = 0, places = 0, prefixes = 0;

	for (u32 opcode = 0; opcode <= 0xffff; opcode++) {
		unsigned int patched = 0;

		for (unsigned int second = 0; second < 256; second++)
			patched += mmp_code_is_patched(opcode, second);
		at("opcode %x", opcode);
		EXPECT(patched, ==, second_bytes(opcode));
		jumps += mmp_code_jumps_on_condition(opcode);
	}
	for (unsigned int byte = 0; byte < 256; byte++) {
		places += mmp_code_names_place(byte);
		prefixes += mmp_code_prefix_is_patched(byte);
	}
	EXPECT(jumps, ==, 16 + 16 + 4);
	EXPECT(places, ==, 8);
	EXPECT(prefixes, ==, 2);
	EXPECT(mmp_code_is_address(0x80000000), ==, true);
	EXPECT(mmp_code_is_address(0x7fffffff), ==, false);
	EXPECT(mmp_code_is_address(0xc0000000), ==, false);
}
