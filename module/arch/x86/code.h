/* SPDX-License-Identifier: GPL-2.0 */
/* Which machine code of x86 differs from boot to boot of one kernel, as it is patched then. */
#ifndef MMPOLICY_CODE_H
#define MMPOLICY_CODE_H

#include <linux/mm_types.h>

/* An opcode as a number: its first byte is the lowest. */
#define MMP_TWO_BYTES(second)	(0x0f | (second) << 8)

/* The three bits of the second byte that tell more about some opcodes. */
static inline int mmp_code_group(u8 modrm)
{
	return modrm >> 3 & 7;
}

static inline bool mmp_code_jumps_on_condition(u32 opcode)
{
	return (opcode & ~0xfU) == 0x70 || (opcode & ~0xfU) == 0xe0 ? opcode < 0xe4 :
	       (opcode & ~0xf00U) == MMP_TWO_BYTES(0x80);
}

/**
 * mmp_code_is_patched - may the kernel put this instruction in place of another one?
 * @opcode: of the instruction
 * @modrm: its second byte, or 0
 *
 * Such an instruction says nothing of the source, and its place may hold another one of
 * this list after the next boot: a NOP for a call, a call for a return. An identical
 * instruction of the compiler is skipped, too.
 */
static inline bool mmp_code_is_patched(u32 opcode, u8 modrm)
{
	switch (opcode) {
	/* Static keys, static calls, ftrace, return thunks, retpolines */
	case 0x90: case MMP_TWO_BYTES(0x1e): case MMP_TWO_BYTES(0x1f):	/* NOP, ENDBR */
	case 0xcc:							/* INT3 */
	case 0xe8: case 0xe9: case 0xeb: case 0xc2: case 0xc3:	/* CALL, JMP, RET */
		return true;
	case 0xff:						/* CALL, JMP indirect */
		return mmp_code_group(modrm) == 2 || mmp_code_group(modrm) == 4;
	case 0x31:						/* XOR %eax, %eax */
		return modrm == 0xc0;
	/* Features of the CPU */
	case MMP_TWO_BYTES(0xae):				/* LFENCE */
		return mmp_code_group(modrm) == 5;
	case MMP_TWO_BYTES(0x01):				/* CLAC, STAC */
		return modrm == 0xca || modrm == 0xcb;
	case MMP_TWO_BYTES(0xb8):				/* POPCNT */
	case MMP_TWO_BYTES(0x0d): case MMP_TWO_BYTES(0x18):	/* PREFETCH */
	case MMP_TWO_BYTES(0xc7):				/* CMPXCHG16B */
	case 0xa4: case 0xa5: case 0xaa: case 0xab:		/* MOVS, STOS */
	/* In place of calls for hypervisors */
	case 0x9c: case 0x58: case 0xfa: case 0xfb:		/* PUSHF, POP %rax, CLI, STI */
	case MMP_TWO_BYTES(0x20): case MMP_TWO_BYTES(0x22):	/* MOV of CR2 and CR3 */
		return true;
	case 0x89:						/* MOV %rdi, %rax */
		return modrm == 0xf8;
	case 0xc6:						/* MOVB $0, (%rdi) */
		return modrm == 0x07;
	}
	return false;
}

/* Is the operand at a distance from the next instruction? */
static inline bool mmp_code_names_place(u8 modrm)
{
	return (modrm & 0xc7) == 0x05;
}

/* LOCK is DS with one CPU. */
static inline bool mmp_code_prefix_is_patched(u8 prefix)
{
	return prefix == 0xf0 || prefix == 0x3e;
}

/* May this number be an address in the kernel, which is somewhere else after each boot? */
static inline bool mmp_code_is_address(u32 value)
{
	return value >= 0x80000000 && value < 0xc0000000;
}

#endif /* MMPOLICY_CODE_H */
