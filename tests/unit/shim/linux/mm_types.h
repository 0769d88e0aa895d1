/* SPDX-License-Identifier: GPL-2.0 */
/* The types of the kernel that policies use, for user space. */
#ifndef SHIM_MM_TYPES_H
#define SHIM_MM_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef int8_t s8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;
typedef unsigned int gfp_t;

#define __rcu
#define __percpu
#define noinline	__attribute__((noinline))
#define __maybe_unused	__attribute__((unused))
#define likely(x)	__builtin_expect(!!(x), 1)
#define unlikely(x)	__builtin_expect(!!(x), 0)
#define READ_ONCE(x)	(*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, v)	(*(volatile __typeof__(x) *)&(x) = (v))
#define U64_MAX		UINT64_MAX
#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))

#define PAGE_SHIFT	12
#define PAGE_SIZE	(1UL << PAGE_SHIFT)
#define PAGE_MASK	(~(PAGE_SIZE - 1))

typedef struct { unsigned long pte; } pte_t;
typedef struct { unsigned long pmd; } pmd_t;

#define VM_LOCKED	0x00002000UL
#define VM_LOCKONFAULT	0x00080000UL
#define VM_HUGEPAGE	0x20000000UL

struct folio;
struct mm_struct;

struct vm_area_struct {
	struct mm_struct *vm_mm;
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
};

struct vm_fault {
	struct vm_area_struct *vma;
	unsigned long address;
	pmd_t *pmd;
};

#endif /* SHIM_MM_TYPES_H */
