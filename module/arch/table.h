/* SPDX-License-Identifier: GPL-2.0 */
/* Tests of page table entries; some architectures have their own versions. */
#ifndef MMPOLICY_ARCH_TABLE_H
#define MMPOLICY_ARCH_TABLE_H

#ifdef CONFIG_X86_64
#include "x86/table.h"
#elif defined(CONFIG_ARM64)
#include "arm64/table.h"
#else
#include "generic/table.h"
#endif

/*
 * True if the CPU may treat the page table entry and its neighbours as a single
 * entry, as contpte on arm64 does. False on CPUs that never do so.
 */
#ifndef mmp_bits_folded
#define mmp_bits_folded(bits)	((void)sizeof(bits), false)
#endif

/*
 * Reads one page table entry. Other tasks may change the page table at any
 * time.
 */
#ifndef mmp_read_pte
#define mmp_read_pte(pte)	ptep_get_lockless((pte_t *)(pte))
#endif

/*
 * True if mmp_make_old(), which clears an accessed bit, may be called without
 * the lock of the page table.
 */
#ifndef MMP_MAKES_OLD_UNLOCKED
#define MMP_MAKES_OLD_UNLOCKED	false
#endif

#endif /* MMPOLICY_ARCH_TABLE_H */
