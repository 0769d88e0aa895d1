/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tells which x86 instructions may differ from boot to boot of one kernel,
 * because the kernel patches them at run time.
 */
#ifndef MMPOLICY_CODE_H
#define MMPOLICY_CODE_H

#include <linux/mm_types.h>

/* A two-byte opcode as one number, with the first byte lowest. */
#define MMP_TWO_BYTES(second)	(0x0f | (second) << 8)

/* Returns bits 3 to 5 of the ModRM byte, which extend some opcodes. */
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
 * mmp_code_is_patched - test whether the kernel may have patched in this
 * instruction
 * @opcode: opcode of the instruction
 * @modrm: its ModRM byte, or 0
 *
 * A patched instruction says nothing about the source, and after the next boot,
 * another one of this list may be in its place: a NOP for a call, or a call for
 * a return. Where the compiler itself uses an instruction of this list, it is
 * left out, too.
 *
 * Return: true if the instruction must be left out.
 */
static inline bool mmp_code_is_patched(u32 opcode, u8 modrm)
{
	switch (opcode) {
	/*
	 * The kernel patches these for static keys, static calls, ftrace,
	 * return thunks and retpolines.
	 */
	case 0x90: case MMP_TWO_BYTES(0x1e): case MMP_TWO_BYTES(0x1f):	/* NOP, ENDBR */
	case 0xcc:							/* INT3 */
	case 0xe8: case 0xe9: case 0xeb: case 0xc2: case 0xc3:	/* CALL, JMP, RET */
		return true;
	case 0xff:						/* CALL, JMP indirect */
		return mmp_code_group(modrm) == 2 || mmp_code_group(modrm) == 4;
	case 0x31:						/* XOR %eax, %eax */
		return modrm == 0xc0;
	/* The kernel patches these for the features of the CPU. */
	case MMP_TWO_BYTES(0xae):				/* LFENCE */
		return mmp_code_group(modrm) == 5;
	case MMP_TWO_BYTES(0x01):				/* CLAC, STAC */
		return modrm == 0xca || modrm == 0xcb;
	case MMP_TWO_BYTES(0xb8):				/* POPCNT */
	case MMP_TWO_BYTES(0x0d): case MMP_TWO_BYTES(0x18):	/* PREFETCH */
	case MMP_TWO_BYTES(0xc7):				/* CMPXCHG16B */
	case 0xa4: case 0xa5: case 0xaa: case 0xab:		/* MOVS, STOS */
	/*
	 * The kernel patches these in place of calls into a hypervisor
	 * (paravirt).
	 */
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

/* Returns true if the ModRM byte says that the operand is relative to %rip. */
static inline bool mmp_code_names_place(u8 modrm)
{
	return (modrm & 0xc7) == 0x05;
}

/*
 * Returns true for the prefix LOCK, which the kernel replaces by DS on a single
 * CPU.
 */
static inline bool mmp_code_prefix_is_patched(u8 prefix)
{
	return prefix == 0xf0 || prefix == 0x3e;
}

/*
 * Returns true if an immediate may be a kernel address, which differs from boot
 * to boot (KASLR).
 */
static inline bool mmp_code_is_address(u32 value)
{
	return value >= 0x80000000 && value < 0xc0000000;
}

#endif /* MMPOLICY_CODE_H */
