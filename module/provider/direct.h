/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Direct ftrace calls: functions of the kernel call an entry of ours before they run.
 * It may change one of their arguments, or be called in place of the function. Each file
 * here uses only what stands above it in this list.
 */
#ifndef MMPOLICY_DIRECT_H
#define MMPOLICY_DIRECT_H

#include <linux/cleanup.h>
#include <linux/ftrace.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/static_call.h>

#include <linux/compaction.h>	/* takes mm.h for granted */

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

/* symbols.c: where things are in the running kernel */
void *mmp_symbol(const char *name);

/* prototype.c: what its BTF says */
const char *mmp_prototypes_init(void);
void mmp_prototypes_exit(void);
bool mmp_prototype(const char *function, char *text, size_t size);
int mmp_member_at(const char *structure, const char *member, const char *type);

typedef void (*mmp_layout_fn)(const char *name, const char *type, unsigned int bits);
void mmp_layout(const char *structure, const char *member, mmp_layout_fn take);

/* find.c: needs of the points in the running kernel, one per row of needs.h */
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

/* What one kernel does in this way and another one does not */
enum mmp_way {
	MMP_WAY_COLLAPSE_ADDRESS_FIRST,	/* of the arguments of what collapses a range */
	MMP_WAY_NODE_RECLAIM_COUNTS,	/* node_reclaim() returns a number of pages */
	MMP_WAY_MADVISE_IN_ONE,		/* one structure has all of a call of madvise() */
};

int mmp_needs_find(enum mm_policy_point point, char *reason, size_t size);
void *mmp_found(enum mmp_need need);
const char *mmp_found_name(enum mmp_need need);
extern int mmp_offset[MMP_NEEDS];	/* of members: how many bytes from the beginning */
bool mmp_way(enum mmp_way way);

#define MMP_FUNCTIONS	6

/**
 * struct mmp_call - functions of the kernel that call an entry of the module
 * @entry: their target, in arch/
 * @need: the functions
 * @back: if the entry has to tell them apart: where each goes on afterwards; or %NULL
 * @ops: ftrace's
 * @at: where the functions are; 0 for none
 * @on: do the functions call the entry? Set last and cleared first.
 * @wanted: another user of ftrace asks for a function, so the point must release it
 * @stuck: the calls cannot be ended now, so the module stays
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
 * Around all that sleeps: how many tasks are in it. SRCU would do as well, for 27 instructions
 * instead of two.
 */
DECLARE_PER_CPU(long, mmp_inside);
#define mmp_call_enter()	this_cpu_inc(mmp_inside)
#define mmp_call_leave()	this_cpu_dec(mmp_inside)

/* ask.c: callbacks that are asked */
extern const struct mm_policy_ops __rcu *mmp_asked[MM_POLICY_ANON_PAGES + 1];

/* For RCU it is enough that preemption is off, and that takes fewer instructions. */
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

/* The answer of @op at @point, or @def if no callback is asked there. */
#define mmp_ask(point, def, op, ...) ({					\
	guard(mmp_ask)();						\
	const struct mm_policy_ops *__ops = rcu_dereference(mmp_asked[point]); \
	__ops ? (*__ops).op(__VA_ARGS__) : (def);			\
})

/* sizes.c: what sysfs enables for anonymous memory */
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

/* orders.c: the point anon_order, where the kernel asks for sizes */
extern struct mmp_call mmp_call_orders;
void mmp_orders_found(void);

/* collapse.c: the point anon_order, khugepaged */
void mmp_collapse_found(void);
unsigned long mmp_collapse_allowed(const struct vm_area_struct *vma);
void mmp_collapse_later(struct vm_area_struct *vma);

/**
 * struct mmp_question - the fault that a CPU was last asked about
 * @vmf: the fault, on the stack of its task; %NULL if no policy decides for it
 * @key: mmp_epoch when the policy was asked, and the address, in one word: with both as
 *	they are now, the answer is that to the fault of now, under the settings of now
 * @answer: of the policy, as &mm_policy_ops.anon_orders has it; or %MMP_SWAPIN_ASKS
 * @page: if the answer is a page, mmp_epoch and the VMA in one word, else 0. This identifies
 *	the answer, as under these settings a page is right for each fault of the VMA
 */
struct mmp_question {
	const struct vm_fault *vmf;
	unsigned long key;
	unsigned long answer;
	unsigned long page;
};

#define MMP_SWAPIN_ASKS	2UL	/* an answer: ask the policy when the kernel asks for sizes */
#define MMP_TOLD	BIT(31)	/* flag of an answer: report the mapped folio, whichever it is */

DECLARE_PER_CPU(struct mmp_question, mmp_question);

/* ask.c: the last task of this CPU for which no policy decides, and the counter of its faults */
DECLARE_PER_CPU(struct mmp_latest, mmp_undecided);
DECLARE_PER_CPU(unsigned long, mmp_undecided_count);	/* a u64 __percpu * */

/**
 * struct mmp_in_advance - the last task of this CPU whose policy has answered faults in advance
 * @of: the task
 * @left: so many more of its faults get a page
 * @requested: the counter of single pages, a u64 __percpu *
 * @reason: the counter of the reason, a u64 __percpu *
 */
struct mmp_in_advance {
	struct mmp_latest of;
	int left;
	unsigned long requested;
	unsigned long reason;
};

DECLARE_PER_CPU(struct mmp_in_advance, mmp_in_advance);

/* fault.c: the point anon_order, faults as a whole */
extern struct mmp_call mmp_call_fault;
void mmp_fault_found(void);
bool mmp_policy_decides(const struct mm_struct *mm);
unsigned long mmp_ask_swapin(struct vm_area_struct *vma, unsigned long vm_flags,
			     unsigned long asked);

/* thp_gfp.c and so on: a point each */
extern struct mmp_call mmp_call_thp_gfp;
extern unsigned long mmp_back_thp_gfp[MMP_FUNCTIONS];
extern struct mmp_call mmp_call_charge;
extern struct mmp_call mmp_call_compact;
extern struct mmp_call mmp_call_madv_free;
void mmp_thp_gfp_found(void);
void mmp_compact_found(void);
void mmp_madv_free_found(void);

/* watch.c: do the functions still call their entries? */
void mmp_watch_find(struct mmp_call *const *(*calls)(enum mm_policy_point point),
		    const struct mmp_watcher *watcher, void (*retry)(void));
const char *mmp_watch_ftrace(void);
void mmp_watch(bool on);
void mmp_watch_exit(void);

/* attach.c: calls begin and end in a worker */

/**
 * struct mmp_attach - how calls begin and end; each may sleep
 * @begin: all calls of a point, or none; reports an error by mmp_attach_failed() at once
 * @end: all calls of a point
 * @retry: ends calls that ftrace has refused to end before
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

/* In arch/: the code of a function, without the parts that differ from boot to boot */
typedef void (*mmp_add_fn)(const void *data, size_t size);
void mmp_code_begin(mmp_add_fn to);
void mmp_code_add(const void *at, size_t size);

/* The entries of each fault, in arch/ */
notrace __noendbr void mmp_entry_orders(void);
notrace __noendbr void mmp_entry_fault(void);

/* The other entries in arch/, and the functions that they call */
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
int mmp_alloc_table(struct mm_struct *mm, pmd_t *pmd);	/* as __pte_alloc() is */
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
extern u32 mmp_only_compact;	/* the flag for compaction without reclaim */
unsigned long mmp_replace_reclaim(void);
long mmp_replace_node_reclaim(void);
int mmp_replace_charge(struct mem_cgroup *memcg, gfp_t gfp, unsigned int nr_pages);
extern int mmp_compact_direct;	/* offset of a bool: a task waits for the result */
enum compact_result mmp_replace_compact(struct compact_control *cc,
					struct capture_control *capture);
/* Arguments as of zap_page_range_single() and zap_page_range_single_batched(). */
void mmp_zap(struct vm_area_struct *vma, unsigned long address, unsigned long size,
	     struct zap_details *details);
void mmp_zap_batched(struct mmu_gather *tlb, struct vm_area_struct *vma,
		     unsigned long address, unsigned long size, struct zap_details *details);
bool mmp_wants_madv_free(void *first, unsigned long start, unsigned long *end,
			 int behavior);
bool mmp_replace_madv_free(void *first, unsigned long start, unsigned long *end,
			   int behavior);

#endif /* MMPOLICY_DIRECT_H */
