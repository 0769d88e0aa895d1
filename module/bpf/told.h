/* SPDX-License-Identifier: GPL-2.0 */
/* Tracepoints for authors of programs: each context, kfunc call and answer. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM mmpolicy

#if !defined(MMPOLICY_BPF_TOLD_H) || defined(TRACE_HEADER_MULTI_READ)
#define MMPOLICY_BPF_TOLD_H

#include <linux/tracepoint.h>

#include "bpf.h"

#define mmp_bpf_name(told)	(((const struct mmp_bpf_ops *)(told)->ops)->name)

/*
 * Defines the tracepoint of one point. @type is the point's context struct;
 * @format and the arguments after it print a context and the answer.
 */
#undef MMP_BPF_TOLD
#define MMP_BPF_TOLD(point, type, format, ...)				\
TRACE_EVENT(mmpolicy_bpf_##point,					\
									\
	TP_PROTO(const struct type *told, u32 answer),			\
									\
	TP_ARGS(told, answer),						\
									\
	TP_STRUCT__entry(						\
		__array(char, policy, MMP_BPF_NAME)			\
		__field_struct(struct type, told)			\
		__field(u32, answer)					\
	),								\
									\
	TP_fast_assign(							\
		memcpy(__entry->policy, mmp_bpf_name(&told->told), MMP_BPF_NAME); \
		__entry->told = *told;					\
		__entry->answer = answer;				\
	),								\
									\
	TP_printk("policy=%s knob=%u,%u,%u,%u " format, __entry->policy, \
		  __entry->told.knob[0], __entry->told.knob[1],		\
		  __entry->told.knob[2], __entry->told.knob[3], __VA_ARGS__) \
)

MMP_BPF_TOLD(anon_order, mmp_fault, "address=%llx start=%llx end=%llx site=%s order=%u reason=%s",
	     __entry->told.address, __entry->told.start, __entry->told.end,
	     __print_symbolic(__entry->told.site,
			      { MM_POLICY_PTE, "pte" },
			      { MM_POLICY_PMD, "pmd" },
			      { MM_POLICY_SWAPIN, "swapin" },
			      { MMP_BPF_COPY, "copy" }),
	     __entry->answer & 0xffff,
	     __print_symbolic(__entry->answer >> 16,
			      { MMP_CAP, "cap" },
			      { MMP_DENSE_NEIGHBOUR, "dense_neighbour" },
			      { MMP_NO_ROOM, "no_room" },
			      { MMP_NO_NEIGHBOUR, "no_neighbour" },
			      { MMP_SPARSE_NEIGHBOUR, "sparse_neighbour" }));

#define mmp_bpf_effort(number)						\
	__print_symbolic(number,					\
			 { MMP_BPF_STOCK, "stock" },			\
			 { MMP_BPF_LIGHT, "light" },			\
			 { MMP_BPF_ONLY_COMPACT, "only_compact" },	\
			 { MMP_BPF_ONLY_COMPACT_ANY, "only_compact_any" }, \
			 { MMP_BPF_RELAXED, "relaxed" })

MMP_BPF_TOLD(thp_gfp, mmp_effort, "start=%llx end=%llx madvised=%u stock=%s answer=%s",
	     __entry->told.start, __entry->told.end, __entry->told.madvised,
	     mmp_bpf_effort(__entry->told.stock), mmp_bpf_effort(__entry->answer));

#define mmp_bpf_compact(number)						\
	__print_symbolic(number,					\
			 { 0, "stock" },				\
			 { MMP_BPF_COMPACT(MM_POLICY_DEFER), "defer" },	\
			 { MMP_BPF_COMPACT(MM_POLICY_TRY), "try" },	\
			 { MMP_BPF_COMPACT(MM_POLICY_TRY_ALL), "try_all" })

MMP_BPF_TOLD(compact, mmp_compaction,
	     "zone=%u pages=%llu free=%llu order=%u movable=%u when=%s scanned=%llu stock=%s answer=%s",
	     __entry->told.zone, __entry->told.pages, __entry->told.free,
	     __entry->told.order, __entry->told.movable,
	     __print_symbolic(__entry->told.when,
			      { MMP_BPF_BEFORE, "before" },
			      { MMP_BPF_FAILED, "failed" },
			      { MMP_BPF_SUCCEEDED, "succeeded" }),
	     __entry->told.scanned, mmp_bpf_compact(__entry->told.stock),
	     mmp_bpf_compact(__entry->answer));

/*
 * Traces a kfunc call. A kfunc without the arguments @first or @second records
 * 0 for them.
 */
TRACE_EVENT(mmpolicy_bpf_question,

	TP_PROTO(const struct mmp_told *told, const char *question, s64 first, u32 second,
		 u64 answer),

	TP_ARGS(told, question, first, second, answer),

	TP_STRUCT__entry(
		__array(char, policy, MMP_BPF_NAME)
		__array(char, question, MMP_BPF_NAME)
		__field(s64, first)
		__field(u64, answer)
		__field(u32, second)
	),

	TP_fast_assign(
		memcpy(__entry->policy, mmp_bpf_name(told), MMP_BPF_NAME);
		strscpy(__entry->question, question);
		__entry->first = first;
		__entry->answer = answer;
		__entry->second = second;
	),

	TP_printk("policy=%s question=%s(%lld,%u) answer=%llu", __entry->policy,
		  __entry->question, __entry->first, __entry->second, __entry->answer)
);

#endif /* MMPOLICY_BPF_TOLD_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE told
#include <trace/define_trace.h>
