/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Entries: ftrace calls one of them at the start of each hooked kernel
 * function. x0 to x8 hold the arguments of the hooked function, x9 its return
 * address, and x30 the address where the hooked function continues.
 */
#include <linux/linkage.h>
#include <asm/assembler.h>

.macro MMP_SAVE
	bti	c
	stp	x29, x30, [sp, #-96]!
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	stp	x2, x3, [sp, #32]
	stp	x4, x5, [sp, #48]
	stp	x6, x7, [sp, #64]
	stp	x8, x9, [sp, #80]
.endm

/*
 * Restores the registers that MMP_SAVE has stored, without changing the condition flags. Leaves the
 * address where the hooked function continues in x10.
 */
.macro MMP_RESTORE
	ldp	x0, x1, [sp, #16]
	ldp	x2, x3, [sp, #32]
	ldp	x4, x5, [sp, #48]
	ldp	x6, x7, [sp, #64]
	ldp	x8, x9, [sp, #80]
	ldp	x29, x10, [sp], #96
	mov	x30, x9
.endm

/*
 * Calls @instead in place of the hooked function, which does not run. It uses
 * RET to get there: the CPU expects a return for the BL in the hooked function.
 * A branch would leave one return address too many, and the CPU would
 * mispredict all returns further up.
 */
.macro MMP_GO instead
	adr_l	x10, \instead
	ret	x10
.endm

/*
 * Replaces one argument of the hooked function by the return value of @ask, and
 * continues the function.
 */
.macro MMP_ENTRY name, ask, changed
SYM_CODE_START(\name)
	MMP_SAVE
	bl	\ask
	mov	x11, x0
	MMP_RESTORE
	mov	\changed, x11
	ret	x10
SYM_CODE_END(\name)
.endm

/*
 * Calls @wanted. If it returns true, @instead runs in place of the hooked
 * function, and may call its rest. If not, the hooked function continues
 * without a stack frame of the module.
 */
.macro MMP_INSTEAD name, wanted, instead
SYM_CODE_START(\name)
	MMP_SAVE
	bl	\wanted
	tst	w0, #0xff
	MMP_RESTORE
	b.eq	1f
	MMP_GO	\instead
1:	ret	x10
SYM_CODE_END(\name)
.endm

/*
 * Calls @wanted. If it returns a non-zero value, @instead runs in place of the hooked function,
 * which has one argument, and gets this value as second argument. If it returns 0, the hooked
 * function continues.
 */
.macro MMP_INSTEAD_WITH name, wanted, instead
SYM_CODE_START(\name)
	MMP_SAVE
	bl	\wanted
	mov	x11, x0
	MMP_RESTORE
	cbz	x11, 1f
	mov	x1, x11
	MMP_GO	\instead
1:	ret	x10
SYM_CODE_END(\name)
.endm

/*
 * Runs @instead in place of the hooked function if a bool in the structure that the first argument
 * points to is true; the variable @offset holds its offset. Otherwise the hooked function
 * continues.
 */
.macro MMP_INSTEAD_IF name, offset, instead
SYM_CODE_START(\name)
	bti	c
	mov	x10, x30
	mov	x30, x9
	adr_l	x11, \offset
	ldrsw	x11, [x11]
	ldrb	w11, [x0, x11]
	cbz	w11, 1f
	MMP_GO	\instead
1:	ret	x10
SYM_CODE_END(\name)
.endm

/*
 * Runs @instead in place of the hooked function if its argument @gfp has the flag for compaction
 * without reclaim, which the variable @flag holds. Otherwise the hooked function continues.
 */
.macro MMP_INSTEAD_GFP name, gfp, flag, instead
SYM_CODE_START(\name)
	bti	c
	mov	x10, x30
	mov	x30, x9
	adr_l	x11, \flag
	ldr	w11, [x11]
	tst	\gfp, w11
	b.eq	1f
	MMP_GO	\instead
1:	ret	x10
SYM_CODE_END(\name)
.endm

/*
 * Jumps to @entry if x30 equals element @nr of the table at x11, that is, if
 * the hooked function of this element has called the shared entry.
 */
.macro MMP_IF_FROM nr, entry
	ldr	x12, [x11, #8 * \nr]
	cmp	x12, x30
	b.eq	\entry
.endm

	.text
MMP_ENTRY mmp_entry_orders_asked, mmp_ask_orders, x3
MMP_ENTRY mmp_entry_swapin, mmp_note_swapin, x0
MMP_ENTRY mmp_entry_thpsize, mmp_ask_thpsize, x0
MMP_INSTEAD_WITH mmp_entry_fault_asked, mmp_wants_fault, mmp_replace_fault
MMP_INSTEAD mmp_entry_huge, mmp_wants_huge, mmp_replace_huge
MMP_INSTEAD mmp_entry_khugepaged, mmp_wants_khugepaged, mmp_replace_khugepaged
MMP_INSTEAD mmp_entry_collapse, mmp_refuses_collapse, mmp_replace_collapse
MMP_INSTEAD mmp_entry_thp_gfp, mmp_wants_thp_gfp, mmp_replace_thp_gfp
MMP_INSTEAD_GFP mmp_entry_reclaim, w2, mmp_only_compact, mmp_replace_reclaim
MMP_INSTEAD_GFP mmp_entry_node_reclaim, w1, mmp_only_compact, mmp_replace_node_reclaim
MMP_INSTEAD_GFP mmp_entry_charge, w1, mmp_only_compact, mmp_replace_charge
MMP_INSTEAD_IF mmp_entry_compact, mmp_compact_direct, mmp_replace_compact
MMP_INSTEAD mmp_entry_madv_free, mmp_wants_madv_free, mmp_replace_madv_free

/*
 * One entry shared by rarely called functions, because ftrace waits for all
 * tasks once per entry that it detaches. The address where the hooked function
 * continues identifies the function; the C tables have this order, too. If no
 * table has the address, the hooked function continues.
 */
SYM_CODE_START(mmp_entry_rare)
	bti	c
	adr_l	x11, mmp_back_rare
	MMP_IF_FROM 0, mmp_entry_huge
	MMP_IF_FROM 1, mmp_entry_swapin
	MMP_IF_FROM 2, mmp_entry_collapse
	MMP_IF_FROM 3, mmp_entry_khugepaged
	MMP_IF_FROM 4, mmp_entry_thpsize
	MMP_IF_FROM 5, mmp_entry_thpsize
	mov	x10, x30
	mov	x30, x9
	ret	x10
SYM_CODE_END(mmp_entry_rare)

/* Entries for the two kernel functions that fold page table entries (fold.c). */
MMP_INSTEAD mmp_entry_set_ptes, mmp_wants_set_ptes, mmp_replace_set_ptes
MMP_INSTEAD mmp_entry_try_fold, mmp_wants_unfolded, mmp_replace_try_fold

SYM_CODE_START(mmp_entry_fold)
	bti	c
	adr_l	x11, mmp_back_fold
	MMP_IF_FROM 0, mmp_entry_set_ptes
	MMP_IF_FROM 1, mmp_entry_try_fold
	mov	x10, x30
	mov	x30, x9
	ret	x10
SYM_CODE_END(mmp_entry_fold)

SYM_CODE_START(mmp_entry_thp_gfp_any)
	bti	c
	adr_l	x11, mmp_back_thp_gfp
	MMP_IF_FROM 0, mmp_entry_thp_gfp
	MMP_IF_FROM 1, mmp_entry_reclaim
	MMP_IF_FROM 2, mmp_entry_reclaim
	MMP_IF_FROM 3, mmp_entry_node_reclaim
	mov	x10, x30
	mov	x30, x9
	ret	x10
SYM_CODE_END(mmp_entry_thp_gfp_any)
