// SPDX-License-Identifier: GPL-2.0
/*
 * The two ftrace entries that every anonymous page fault calls. All other
 * entries are in entry.S.
 */
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/thread_info.h>
#include <asm/alternative.h>
#include <asm/memory.h>

#include "../../anon_order/table.h"
#include "../../provider/direct.h"

/* Loads the offset of this CPU's per-CPU variables into x13. */
#define THIS_CPU	ALTERNATIVE("mrs	x13, tpidr_el1", "mrs	x13, tpidr_el2",	\
				    ARM64_HAS_VIRT_HOST_EXTN) "\n"

/*
 * ADDRESS() loads the address of a variable into @reg; ADD_CPU() then converts
 * it to the address of this CPU's copy.
 */
#define ADDRESS(reg, name)	"	adrp	" reg ", " name "\n"			\
				"	add	" reg ", " reg ", :lo12:" name "\n"
#define ADD_CPU(reg)		"	add	" reg ", " reg ", x13\n"

/* Increments this CPU's copy of the counter at @reg. */
#define COUNT(reg)		"	ldr	x14, [" reg ", x13]\n"			\
				"	add	x14, x14, #1\n"				\
				"	str	x14, [" reg ", x13]\n"

/*
 * Returns to the hooked kernel function, which then runs as if it had no hook.
 */
#define GO_ON			"	mov	x10, x30\n"				\
				"	mov	x30, x9\n"				\
				"	ret	x10\n"

/*
 * Adds 1 to (add), or subtracts 1 from (sub), the preempt_count() of the task
 * at x15.
 */
#ifdef CONFIG_PREEMPT_COUNT
#define PREEMPT(op)		"	ldr	w14, [x15, %[count]]\n"			\
				"	" op "	w14, w14, #1\n"				\
				"	str	w14, [x15, %[count]]\n"
#else
#define PREEMPT(op)
#endif

#define BEGIN(name)	"	.pushsection .text.mmp_entries, \"ax\"\n"		\
			"	.balign	16\n"						\
			"	.globl	" name "\n"					\
			"	.type	" name ", %%function\n"				\
			name ":	hint	#34\n"						/* bti c */
#define END(name)	"	.size	" name ", . - " name "\n"			\
			"	.popsection\n"

/* One LDP or STP loads or stores two members, so these must be adjacent. */
static_assert(offsetof(struct mmp_latest, task) == 0 && offsetof(struct mmp_latest, epoch) == 8);
static_assert(offsetof(struct mmp_in_advance, of) == 0);
static_assert(offsetof(struct mmp_in_advance, reason) ==
	      offsetof(struct mmp_in_advance, requested) + 8);
static_assert(offsetof(struct mmp_question, vmf) == 0 && offsetof(struct mmp_question, key) == 8);
static_assert(MM_POLICY_STOCK == 1 && MMP_SWAPIN_ASKS == 2);
static_assert((u32)MMP_SPECIAL_FLAGS == MMP_SPECIAL_FLAGS);

/*
 * mmp_entry_fault runs in each fault of every task, so each instruction counts. The compiler
 * gives every function a stack frame here, so fault() only holds the assembly text. Registers of
 * arguments, x9 and x30 do not change.
 *
 *	if (!(vmf->flags & FAULT_FLAG_WRITE))
 *		return;
 *	preempt_disable();
 *	if (mmp_is_kept(&mmp_undecided, vmf->vma->vm_mm)) {
 *		(*mmp_undecided_count)++;
 *		mmp_question.vmf = NULL;
 *	} else if (mmp_is_kept(&mmp_in_advance.of, vmf->vma->vm_mm) &&
 *		   !(vmf->vma->vm_flags & MMP_SPECIAL_FLAGS) && mmp_in_advance.left > 0) {
 *		mmp_in_advance.left--;
 *		(*mmp_in_advance.requested)++;
 *		(*mmp_in_advance.reason)++;
 *		mmp_question.vmf = vmf;
 *		mmp_question.page = mmp_epoch ^ vmf->vma;
 *	} else {
 *		mmp_question.vmf = vmf;
 *		mmp_question.key = mmp_epoch ^ vmf->address;
 *		goto mmp_entry_fault_asked;
 *	}
 *	preempt_enable_no_resched();
 *
 * A reschedule that became due in between happens at the next unlock in the fault.
 */
static void __used fault(void)
{
	asm volatile(BEGIN("mmp_entry_fault")
	"	ldr	w10, [x0, %[flags]]\n"
	"	tbz	w10, %[write], 2f\n"
	"	ldr	x11, [x0, %[vma]]\n"
	"	mrs	x15, sp_el0\n"
	PREEMPT("add")
	ADDRESS("x12", "mmp_epoch")
	"	ldar	x12, [x12]\n"
	THIS_CPU
	"	ldr	x14, [x11, %[vm_mm]]\n"
	"	ldr	x10, [x15, %[birth]]\n"
	"	eor	x14, x14, x10\n"
	ADDRESS("x10", "mmp_undecided") ADD_CPU("x10")
	"	ldp	x16, x17, [x10]\n"
	"	cmp	x16, x14\n"
	"	ccmp	x17, x12, #0, eq\n"
	"	b.ne	1f\n"
	ADDRESS("x10", "mmp_undecided_count")
	"	ldr	x10, [x10, x13]\n"
	COUNT("x10")
	ADDRESS("x10", "mmp_question")
	"	str	xzr, [x10, x13]\n"
	PREEMPT("sub")
	"2:\n"
	GO_ON
	"1:\n"
	ADDRESS("x10", "mmp_in_advance") ADD_CPU("x10")
	"	ldp	x16, x17, [x10]\n"
	"	cmp	x16, x14\n"
	"	ccmp	x17, x12, #0, eq\n"
	"	b.ne	3f\n"
	"	ldr	w16, [x11, %[vm_flags]]\n"
	"	mov	w17, %[special_low]\n"
	"	movk	w17, %[special_high], lsl #16\n"
	"	tst	w16, w17\n"
	"	b.ne	3f\n"
	"	ldr	w16, [x10, %[left]]\n"
	"	subs	w16, w16, #1\n"
	"	b.lt	3f\n"
	"	str	w16, [x10, %[left]]\n"
	"	ldp	x16, x17, [x10, %[requested]]\n"
	COUNT("x16")
	COUNT("x17")
	ADDRESS("x10", "mmp_question") ADD_CPU("x10")
	"	eor	x12, x12, x11\n"
	"	str	x0, [x10]\n"
	"	str	x12, [x10, %[page]]\n"
	PREEMPT("sub")
	GO_ON
	"3:\n"
	ADDRESS("x10", "mmp_question") ADD_CPU("x10")
	"	ldr	x14, [x0, %[address]]\n"
	"	eor	x12, x12, x14\n"
	"	stp	x0, x12, [x10]\n"
	"	b	mmp_entry_fault_asked\n"
	END("mmp_entry_fault")
	: : [write] "i" (ilog2(FAULT_FLAG_WRITE)),
	    [flags] "i" (offsetof(struct vm_fault, flags)),
	    [vma] "i" (offsetof(struct vm_fault, vma)),
	    [address] "i" (offsetof(struct vm_fault, address)),
	    [vm_mm] "i" (offsetof(struct vm_area_struct, vm_mm)),
	    [vm_flags] "i" (offsetof(struct vm_area_struct, vm_flags)),
	    [birth] "i" (offsetof(struct task_struct, start_boottime)),
	    [count] "i" (offsetof(struct task_struct, thread_info.preempt.count)),
	    [special_low] "i" (MMP_SPECIAL_FLAGS & 0xffff),
	    [special_high] "i" (MMP_SPECIAL_FLAGS >> 16),
	    [left] "i" (offsetof(struct mmp_in_advance, left)),
	    [requested] "i" (offsetof(struct mmp_in_advance, requested)),
	    [page] "i" (offsetof(struct mmp_question, page)));
}

/*
 * mmp_entry_orders, for __thp_vma_allowable_orders(), runs in each fault of every task, so each
 * instruction counts. x3 has the sizes that the kernel asks for, and gets the answer. Registers
 * of other arguments, x9 and x30 do not change.
 *
 *	if (why != fault || orders >= BIT(PMD_ORDER))
 *		goto mmp_entry_orders_asked;
 *	vmf = this_cpu_read(mmp_question.vmf);
 *	if (vmf && mmp_question.page == (mmp_epoch ^ vma)) {
 *		orders = 0;
 *		return;
 *	}
 *	if (vma->vm_ops)
 *		goto mmp_entry_orders_asked;
 *	if (!vmf || vmf is on another stack)
 *		goto given;
 *	preempt_disable();
 *	if (this CPU's question is another one, or has another key)
 *		goto given;
 *	answer = this_cpu_read(mmp_question.answer);
 *	preempt_enable_no_resched();
 *	if (answer & MM_POLICY_STOCK)
 *		goto given;
 *	if (answer & MMP_SWAPIN_ASKS)
 *		goto mmp_entry_orders_asked;
 *	orders &= answer;
 *	return;
 * given:
 *	orders &= mmp_admin_sizes[!!(vm_flags & VM_HUGEPAGE)];
 *
 * PMD size goes to the C code, as this CPU's question (struct mmp_question) is then still that of
 * an earlier fault. So do larger sizes: the kernel asks for them for mappings of devices only.
 *
 * The question belongs to this fault if its @vmf is on the stack of the current task and its @key
 * matches. A task that has moved to another CPU since the question was stored does not find it
 * there, and gets the sizes of the administrator. The answer of a single page holds for each
 * fault in its VMA, so mmp_question.page may be read on another CPU.
 */
static void __used orders(void)
{
	asm volatile(BEGIN("mmp_entry_orders")
	"	cmp	w2, %[fault]\n"
	"	b.ne	8f\n"
	"	lsr	x10, x3, %[pmd]\n"
	"	cbnz	x10, 8f\n"
	THIS_CPU
	"	adrp	x10, mmp_question\n"
	ADD_CPU("x10")
	"	ldr	x11, [x10, :lo12:mmp_question]\n"
	"	cbz	x11, 1f\n"
	"	add	x10, x10, :lo12:mmp_question\n"
	ADDRESS("x12", "mmp_epoch")
	"	ldr	x12, [x12]\n"
	"	eor	x14, x12, x0\n"
	"	ldr	x15, [x10, %[page]]\n"
	"	cmp	x14, x15\n"
	"	b.eq	6f\n"
	"	ldr	x14, [x0, %[vm_ops]]\n"
	"	cbnz	x14, 8f\n"
	"	mov	x14, sp\n"
	"	eor	x14, x14, x11\n"
	"	lsr	x14, x14, %[shift]\n"
	"	cbnz	x14, 4f\n"
	"	ldr	x17, [x11, %[address]]\n"
	"	eor	x12, x12, x17\n"
	"	mrs	x15, sp_el0\n"
	PREEMPT("add")
	THIS_CPU
	ADDRESS("x10", "mmp_question") ADD_CPU("x10")
	"	ldp	x16, x17, [x10]\n"
	"	ldr	x10, [x10, %[answer]]\n"
	PREEMPT("sub")
	"	cmp	x16, x11\n"
	"	ccmp	x17, x12, #0, eq\n"
	"	b.ne	4f\n"
	"	tst	x10, %[special]\n"
	"	b.ne	5f\n"
	"	and	x3, x3, x10\n"
	GO_ON
	"6:	mov	x3, #0\n"
	GO_ON
	"5:	tbnz	x10, #0, 4f\n"		/* stock: apply the sizes that sysfs enables */
	"8:	b	mmp_entry_orders_asked\n"
	"1:	ldr	x14, [x0, %[vm_ops]]\n"
	"	cbnz	x14, 8b\n"
	"4:	tbnz	x1, %[advised], 7f\n"
	"	adrp	x10, mmp_admin_sizes\n"
	"	ldr	x14, [x10, :lo12:mmp_admin_sizes]\n"
	"	and	x3, x3, x14\n"
	GO_ON
	"7:\n"
	ADDRESS("x10", "mmp_admin_sizes")
	"	ldr	x14, [x10, #8]\n"
	"	and	x3, x3, x14\n"
	GO_ON
	END("mmp_entry_orders")
	: : [fault] "i" (MMP_TVA_FAULT), [pmd] "i" (PMD_ORDER), [shift] "i" (THREAD_SHIFT),
	    [special] "i" (MM_POLICY_STOCK | MMP_SWAPIN_ASKS), [advised] "i" (ilog2(VM_HUGEPAGE)),
	    [vm_ops] "i" (offsetof(struct vm_area_struct, vm_ops)),
	    [address] "i" (offsetof(struct vm_fault, address)),
	    [count] "i" (offsetof(struct task_struct, thread_info.preempt.count)),
	    [answer] "i" (offsetof(struct mmp_question, answer)),
	    [page] "i" (offsetof(struct mmp_question, page)));
}
