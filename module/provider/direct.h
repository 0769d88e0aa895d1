/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Direct ftrace calls: hooked kernel functions call an entry of the module
 * before they run. The entry may change one of their arguments, or run other
 * code in place of the function. Each file listed here uses only files above it
 * in this list.
 */
#ifndef MMPOLICY_DIRECT_H
#define MMPOLICY_DIRECT_H

#include <linux/cleanup.h>
#include <linux/ftrace.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/static_call.h>

#include <linux/compaction.h>	/* needs mm.h to be included before */

#include "../arch/site.h"
#include "../compat.h"
#include "../sense/whose.h"
#include "provider.h"

struct capture_control;
struct mmu_gather;
struct compact_control;

/* functions.c: the hooked functions of a point, as mmp_call_find() reports them */
void mmp_functions_begin(enum mm_policy_point point);
void mmp_functions_add(const char *name);
void mmp_functions_drop(void);

/* symbols.c: addresses of symbols in the running kernel */
void *mmp_symbol(const char *name);

/* prototype.c: types from the BTF of the running kernel */
const char *mmp_prototypes_init(void);
void mmp_prototypes_exit(void);
bool mmp_prototype(const char *function, char *text, size_t size);
int mmp_member_at(const char *structure, const char *member, const char *type);

typedef void (*mmp_layout_fn)(const char *name, const char *type, unsigned int bits);
void mmp_layout(const char *structure, const char *member, mmp_layout_fn take);

/*
 * find.c: symbols and types that the points need in the running kernel, one per
 * row of needs.h
 */
enum mmp_need {
	MMP_NEED_NONE,
#define MMP_HOOK(point, id, ...)	MMP_NEED_##id,
#define MMP_CALL(point, id, ...)	MMP_NEED_##id,
#define MMP_VARIABLE(point, id, ...)	MMP_NEED_##id,
#define MMP_MEMBER(point, id, ...)	MMP_NEED_##id,
#define MMP_NOTHING(point, id, ...)	MMP_NEED_##id,
#include "needs.h"
	MMP_NEEDS
};

/* Variants: differences between kernels that the module must follow */
enum mmp_way {
	/*
	 * the hooked function that collapses a range for khugepaged gets the address of the range
	 * as first argument
	 */
	MMP_WAY_COLLAPSE_ADDRESS_FIRST,
	/* node_reclaim() returns a number of pages, not a status */
	MMP_WAY_NODE_RECLAIM_COUNTS,
	/* the kernel passes all arguments of madvise() in one structure */
	MMP_WAY_MADVISE_IN_ONE,
};

int mmp_needs_find(enum mm_policy_point point, char *reason, size_t size);
void *mmp_found(enum mmp_need need);
const char *mmp_found_name(enum mmp_need need);
/* offset in bytes of each structure member in needs.h */
extern int mmp_offset[MMP_NEEDS];
bool mmp_way(enum mmp_way way);

#define MMP_FUNCTIONS	6

/**
 * struct mmp_call - hooked kernel functions that share one entry of the module
 * @entry: the entry, in arch/
 * @need: the functions
 * @back: for an entry that must tell its functions apart: address where each
 *	continues afterwards; or %NULL
 * @ops: ftrace's data
 * @at: addresses of the functions; 0 for none
 * @on: true while the functions call the entry; set last and cleared first
 * @wanted: another user of ftrace asks for a function, so the point must
 *	release it
 * @stuck: ftrace has refused to detach the call, so the module stays loaded
 */
struct mmp_call {
	void *entry;
	enum mmp_need need[MMP_FUNCTIONS];
	unsigned long *back;
	struct ftrace_ops ops;
	unsigned long at[MMP_FUNCTIONS];
	bool on;
	bool wanted;
	bool stuck;
};

#define for_each_function(call, i)					\
	for ((i) = 0; (i) < ARRAY_SIZE((call)->need) && (call)->need[i]; (i)++)

/* call.c */
extern struct mmp_call mmp_call_rare;
extern unsigned long mmp_back_rare[MMP_FUNCTIONS];
int mmp_call_find(struct mmp_call *call, char *reason, size_t size);
void *mmp_call_original(const struct mmp_call *call, int i);
int mmp_call_begin(struct mmp_call *call);
const char *mmp_call_missing(const struct mmp_call *call);
void mmp_call_end(struct mmp_call *call);
bool mmp_call_retry(struct mmp_call *call);
void mmp_calls_wait(void);

/*
 * Counts the tasks inside module code that hooked functions call and that may sleep; unload waits
 * for them. SRCU would work too, but takes 27 instructions where this takes two.
 */
DECLARE_PER_CPU(long, mmp_inside);
#define mmp_call_enter()	this_cpu_inc(mmp_inside)
#define mmp_call_leave()	this_cpu_dec(mmp_inside)

/* ask.c: the callbacks to call at each point */
extern const struct mm_policy_ops __rcu *mmp_asked[MM_POLICY_ANON_PAGES + 1];

/* True while @point has callbacks. Its hooks may stay attached for longer. */
#define mmp_is_asked(point)	rcu_access_pointer(mmp_asked[point])

/*
 * Begins an RCU read section. Turning preemption off suffices for RCU, and
 * takes fewer instructions.
 */
static __always_inline void mmp_ask_begin(void)
{
	preempt_disable();
	rcu_lock_acquire(&rcu_lock_map);
}

static __always_inline void mmp_ask_end(void)
{
	rcu_lock_release(&rcu_lock_map);
	preempt_enable();
}

DEFINE_LOCK_GUARD_0(mmp_ask, mmp_ask_begin(), mmp_ask_end())

/*
 * Calls callback @op at @point and returns its answer. Returns @def if the
 * point has no callbacks.
 */
#define mmp_ask(point, def, op, ...) ({					\
	guard(mmp_ask)();						\
	const struct mm_policy_ops *__ops = rcu_dereference(mmp_asked[point]); \
	__ops ? (*__ops).op(__VA_ARGS__) : (def);			\
})

/* sizes.c: the folio sizes that sysfs enables for anonymous memory */
extern unsigned long mmp_admin_sizes[2];
void mmp_sizes_found(void);
void mmp_sizes_set_aside(void);
void mmp_sizes_ready(void);
void mmp_sizes_open(unsigned long orders);
void mmp_sizes_close(void);
void mmp_sizes_closed(void);
void mmp_sizes_follow(void);
void mmp_sizes_restore(void);
unsigned long mmp_sizes_admin(unsigned long vm_flags, unsigned long orders);
bool mmp_pmd_size_asked(const struct vm_area_struct *vma);

/* orders.c: point anon_order, where the kernel asks for allowed sizes */
extern struct mmp_call mmp_call_orders;
void mmp_orders_found(void);

/* collapse.c: point anon_order, for khugepaged */
void mmp_collapse_found(void);
unsigned long mmp_collapse_allowed(const struct vm_area_struct *vma);
void mmp_collapse_later(struct vm_area_struct *vma);

/**
 * struct mmp_question - the last fault on this CPU about which a policy was
 * asked
 * @vmf: the fault, on the stack of its task; %NULL if no policy decides for it
 * @key: mmp_epoch XOR the fault's address at the time of the call. If both are
 *	unchanged, the answer is valid for this fault under the current
 *	settings.
 * @answer: the policy's answer, as for &mm_policy_ops.anon_orders; or
 *	%MMP_SWAPIN_ASKS
 * @page: if the answer is a single page, mmp_epoch XOR the VMA, else 0. Under
 *	unchanged settings, this answer is valid for every fault in the VMA.
 */
struct mmp_question {
	const struct vm_fault *vmf;
	unsigned long key;
	unsigned long answer;
	unsigned long page;
};

/*
 * an answer: the policy has not been called yet, and is called when the kernel
 * asks for sizes (swap-in)
 */
#define MMP_SWAPIN_ASKS	2UL
/*
 * flag of an answer: report the mapped folio to the policy, whatever its size
 */
#define MMP_TOLD	BIT(31)

DECLARE_PER_CPU(struct mmp_question, mmp_question);

/*
 * ask.c: the task that faulted last on this CPU without a policy, and the address
 * of the per-CPU counter (u64) of such faults
 */
DECLARE_PER_CPU(struct mmp_latest, mmp_undecided);
DECLARE_PER_CPU(unsigned long, mmp_undecided_count);

/**
 * struct mmp_in_advance - the last task on this CPU whose policy has answered
 * faults in advance
 * @of: the task
 * @left: number of its next faults that get a single page
 * @requested: counter of single pages, a u64 __percpu *
 * @reason: counter of the reason, a u64 __percpu *
 */
struct mmp_in_advance {
	struct mmp_latest of;
	int left;
	unsigned long requested;
	unsigned long reason;
};

DECLARE_PER_CPU(struct mmp_in_advance, mmp_in_advance);

/* fault.c: point anon_order, for a whole fault */
extern struct mmp_call mmp_call_fault;
void mmp_fault_found(void);
bool mmp_policy_decides(const struct mm_struct *mm);
unsigned long mmp_ask_swapin(struct vm_area_struct *vma, unsigned long vm_flags,
			     unsigned long asked);

#ifdef MMP_FOLDS
/* In arch/: blocks of page table entries that the kernel folds into one */
extern struct mmp_call mmp_call_fold;
void mmp_fold_found(void);
int mmp_unfold_begin(const struct vm_fault *vmf, unsigned long answer);
void mmp_unfold_end(const struct vm_fault *vmf, int cpu);
#else
#define mmp_fold_found()
static inline int mmp_unfold_begin(const struct vm_fault *vmf, unsigned long answer)
{
	return -1;
}

static inline void mmp_unfold_end(const struct vm_fault *vmf, int cpu)
{
}
#endif

/* thp_gfp.c, compact.c, madv_free.c: one point each */
extern struct mmp_call mmp_call_thp_gfp;
extern unsigned long mmp_back_thp_gfp[MMP_FUNCTIONS];
extern struct mmp_call mmp_call_charge;
extern struct mmp_call mmp_call_compact;
extern struct mmp_call mmp_call_madv_free;
void mmp_thp_gfp_found(void);
void mmp_compact_found(void);
void mmp_madv_free_found(void);

/* watch.c: checks that the hooked functions still call their entries */
void mmp_watch_find(struct mmp_call *const *(*calls)(enum mm_policy_point point),
		    const struct mmp_watcher *watcher, void (*retry)(void));
const char *mmp_watch_ftrace(void);
void mmp_watch(bool on);
void mmp_watch_exit(void);

/* attach.c: attaches and detaches calls in a worker */

/**
 * struct mmp_attach - functions that attach and detach hooks; each may sleep
 * @begin: attaches all calls of a point, or none; reports an error by
 *	mmp_attach_failed() at once
 * @end: detaches all calls of a point
 * @retry: detaches calls that ftrace has refused to detach before
 * @lacks: as mmp_provider_lacks()
 */
struct mmp_attach {
	int (*begin)(enum mm_policy_point point);
	void (*end)(enum mm_policy_point point);
	bool (*retry)(void);
	const char *(*lacks)(enum mm_policy_point point);
};

void mmp_attach_init(const struct mmp_attach *how, const struct mmp_watcher *watcher);
void mmp_attach_failed(enum mm_policy_point point, int err);
void mmp_attach_retry(void);
void mmp_attach_exit(void);

/*
 * In arch/: pass the machine code of functions to a callback, without the parts that differ from
 * boot to boot
 */
typedef void (*mmp_add_fn)(const void *data, size_t size);
void mmp_code_begin(mmp_add_fn to);
void mmp_code_add(const void *at, size_t size);

/* In arch/: the two entries that every fault calls */
notrace __noendbr void mmp_entry_orders(void);
notrace __noendbr void mmp_entry_fault(void);

/*
 * In arch/: all entries but mmp_entry_orders() and mmp_entry_fault(), and the C functions that the
 * entries call
 */
void mmp_entry_rare(void);
void mmp_entry_huge(void);
void mmp_entry_swapin(void);
void mmp_entry_thpsize(void);
void mmp_entry_khugepaged(void);
void mmp_entry_collapse(void);
void mmp_entry_thp_gfp_any(void);
void mmp_entry_thp_gfp(void);
void mmp_entry_reclaim(void);
void mmp_entry_node_reclaim(void);
void mmp_entry_charge(void);
void mmp_entry_compact(void);
void mmp_entry_madv_free(void);
notrace __noendbr unsigned long mmp_ask_orders(struct vm_area_struct *vma,
					       unsigned long vm_flags,
					       unsigned long why, unsigned long asked);
notrace __noendbr unsigned long mmp_wants_fault(struct vm_fault *vmf);
vm_fault_t mmp_replace_fault(struct vm_fault *vmf, unsigned long answer);
/* only its type is used, for a static call: that of __pte_alloc() */
int mmp_alloc_table(struct mm_struct *mm, pmd_t *pmd);
bool mmp_wants_huge(struct vm_fault *vmf);
vm_fault_t mmp_replace_huge(struct vm_fault *vmf);
notrace __noendbr struct vm_fault *mmp_note_swapin(struct vm_fault *vmf);
struct kobject *mmp_ask_thpsize(struct kobject *kobj);
bool mmp_wants_khugepaged(void);
int mmp_replace_khugepaged(void);
void mmp_khugepaged_enter(struct vm_area_struct *vma, vm_flags_t flags);
bool mmp_refuses_collapse(unsigned long first, struct vm_area_struct *vma, unsigned long third);
int mmp_replace_collapse(void);
bool mmp_wants_thp_gfp(struct vm_area_struct *vma);
gfp_t mmp_replace_thp_gfp(struct vm_area_struct *vma);
extern u32 mmp_only_compact;	/* gfp flag for compaction without reclaim */
unsigned long mmp_replace_reclaim(void);
long mmp_replace_node_reclaim(void);
int mmp_replace_charge(struct mem_cgroup *memcg, gfp_t gfp, unsigned int nr_pages);
/*
 * offset of a bool in struct compact_control: true if a task waits for the
 * result
 */
extern int mmp_compact_direct;
enum compact_result mmp_replace_compact(struct compact_control *cc,
					struct capture_control *capture);
/*
 * Only the types of mmp_zap() and mmp_zap_batched() are used, for static calls: those of
 * zap_page_range_single() and zap_page_range_single_batched().
 */
void mmp_zap(struct vm_area_struct *vma, unsigned long address, unsigned long size,
	     struct zap_details *details);
void mmp_zap_batched(struct mmu_gather *tlb, struct vm_area_struct *vma,
		     unsigned long address, unsigned long size, struct zap_details *details);
bool mmp_wants_madv_free(void *first, unsigned long start, unsigned long *end,
			 int behavior);
bool mmp_replace_madv_free(void *first, unsigned long start, unsigned long *end,
			   int behavior);

#endif /* MMPOLICY_DIRECT_H */
