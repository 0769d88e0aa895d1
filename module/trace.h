/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM mmpolicy

#if !defined(MMPOLICY_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define MMPOLICY_TRACE_H

#include <linux/tracepoint.h>

DECLARE_EVENT_CLASS(mmpolicy_anon,

	TP_PROTO(unsigned long addr, unsigned int site, unsigned int order,
		 unsigned int reason),

	TP_ARGS(addr, site, order, reason),

	TP_STRUCT__entry(
		__field(unsigned long, addr)
		__field(u8, site)
		__field(u8, order)
		__field(u8, reason)
	),

	TP_fast_assign(
		__entry->addr = addr;
		__entry->site = site;
		__entry->order = order;
		__entry->reason = reason;
	),

	TP_printk("addr=%lx site=%s order=%u reason=%s", __entry->addr,
		  __print_symbolic(__entry->site,
				   { MM_POLICY_PTE, "pte" },
				   { MM_POLICY_PMD, "pmd" },
				   { MM_POLICY_SWAPIN, "swapin" }),
		  __entry->order,
		  __print_symbolic(__entry->reason,
				   { MMP_CAP, "cap" },
				   { MMP_DENSE_NEIGHBOUR, "dense_neighbour" },
				   { MMP_NO_ROOM, "no_room" },
				   { MMP_NO_NEIGHBOUR, "no_neighbour" },
				   { MMP_SPARSE_NEIGHBOUR, "sparse_neighbour" },
				   { MMP_PROBE, "probe" },
				   { MMP_LOCKED, "locked" },
				   { MMP_DEFERRED, "deferred" }))
);

int mmp_anon_traced(void);
void mmp_anon_untraced(void);

DEFINE_EVENT_FN(mmpolicy_anon, mmpolicy_anon_order,

	TP_PROTO(unsigned long addr, unsigned int site, unsigned int order,
		 unsigned int reason),

	TP_ARGS(addr, site, order, reason),

	mmp_anon_traced, mmp_anon_untraced
);

DEFINE_EVENT(mmpolicy_anon, mmpolicy_anon_shadow,

	TP_PROTO(unsigned long addr, unsigned int site, unsigned int order,
		 unsigned int reason),

	TP_ARGS(addr, site, order, reason)
);

TRACE_EVENT(mmpolicy_bulk,

	TP_PROTO(int nid, unsigned int want, unsigned int got),

	TP_ARGS(nid, want, got),

	TP_STRUCT__entry(
		__field(int, nid)
		__field(u8, want)
		__field(u8, got)
	),

	TP_fast_assign(
		__entry->nid = nid;
		__entry->want = want;
		__entry->got = got;
	),

	TP_printk("nid=%d want=%u got=%u", __entry->nid, __entry->want,
		  __entry->got)
);

TRACE_EVENT(mmpolicy_thp_gfp,

	TP_PROTO(unsigned long vma, unsigned int order, int node, bool local,
		 u64 ns),

	TP_ARGS(vma, order, node, local, ns),

	TP_STRUCT__entry(
		__field(unsigned long, vma)
		__field(u64, ns)
		__field(s16, node)
		__field(u8, order)
		__field(bool, local)
	),

	TP_fast_assign(
		__entry->vma = vma;
		__entry->ns = ns;
		__entry->node = node;
		__entry->order = order;
		__entry->local = local;
	),

	TP_printk("vma=%lx order=%u node=%d local=%d ns=%llu", __entry->vma,
		  __entry->order, __entry->node, __entry->local, __entry->ns)
);

#define mmpolicy_effort(gfp)						\
	__print_flags((__force unsigned long)(gfp), "|",		\
		      { (__force unsigned long)__GFP_DIRECT_RECLAIM, "direct" }, \
		      { (__force unsigned long)__GFP_KSWAPD_RECLAIM, "kswapd" }, \
		      { (__force unsigned long)__GFP_NORETRY, "once" },	\
		      { (__force unsigned long)__GFP_ONLY_COMPACT, "only_compact" }, \
		      { (__force unsigned long)__GFP_THISNODE, "this_node" })

TRACE_EVENT(mmpolicy_thp_gfp_try,

	TP_PROTO(unsigned long vma, gfp_t stock, gfp_t answer),

	TP_ARGS(vma, stock, answer),

	TP_STRUCT__entry(
		__field(unsigned long, vma)
		__field(u32, stock)
		__field(u32, answer)
	),

	TP_fast_assign(
		__entry->vma = vma;
		__entry->stock = (__force u32)(stock & MM_POLICY_GFP_MASK);
		__entry->answer = (__force u32)(answer & MM_POLICY_GFP_MASK);
	),

	TP_printk("vma=%lx stock=%s answer=%s", __entry->vma,
		  mmpolicy_effort(__entry->stock), mmpolicy_effort(__entry->answer))
);

TRACE_EVENT(mmpolicy_madv_free,

	TP_PROTO(unsigned long addr, unsigned long pages, unsigned int answer),

	TP_ARGS(addr, pages, answer),

	TP_STRUCT__entry(
		__field(unsigned long, addr)
		__field(unsigned long, pages)
		__field(u8, answer)
	),

	TP_fast_assign(
		__entry->addr = addr;
		__entry->pages = pages;
		__entry->answer = answer;
	),

	TP_printk("addr=%lx pages=%lu answer=%s", __entry->addr, __entry->pages,
		  __print_symbolic(__entry->answer,
				   { MMP_ANSWER_LAZY, "lazy" },
				   { MMP_ANSWER_EAGER, "eager" },
				   { MMP_ANSWER_LIMIT, "eager_limit" },
				   { MMP_ANSWER_MEMORY, "eager_memory" },
				   { MMP_ANSWER_UNKNOWN, "eager_unknown" }))
);

TRACE_EVENT(mmpolicy_compact_try,

	TP_PROTO(int nid, unsigned int zone, int order, u8 stock, u8 answer),

	TP_ARGS(nid, zone, order, stock, answer),

	TP_STRUCT__entry(
		__field(u16, nid)
		__field(u8, zone)
		__field(u8, order)
		__field(u8, stock)
		__field(u8, answer)
	),

	TP_fast_assign(
		__entry->nid = nid;
		__entry->zone = zone;
		__entry->order = order;
		__entry->stock = stock;
		__entry->answer = answer;
	),

	TP_printk("node=%u zone=%u order=%u stock=%s answer=%s",
		  __entry->nid, __entry->zone, __entry->order,
		  __entry->stock == MM_POLICY_DEFER ? "defer" : "try",
		  __print_symbolic(__entry->answer,
				   { MM_POLICY_DEFER, "defer" },
				   { MM_POLICY_TRY, "try" },
				   { MM_POLICY_TRY_ALL, "try_all" }))
);

TRACE_EVENT(mmpolicy_compact_done,

	TP_PROTO(int nid, unsigned int zone, int order, bool success,
		 unsigned long migrate_scanned, unsigned long free_scanned,
		 u64 ns),

	TP_ARGS(nid, zone, order, success, migrate_scanned, free_scanned, ns),

	TP_STRUCT__entry(
		__field(u16, nid)
		__field(u8, zone)
		__field(u8, order)
		__field(bool, success)
		__field(unsigned long, migrate_scanned)
		__field(unsigned long, free_scanned)
		__field(u64, ns)
	),

	TP_fast_assign(
		__entry->nid = nid;
		__entry->zone = zone;
		__entry->order = order;
		__entry->success = success;
		__entry->migrate_scanned = migrate_scanned;
		__entry->free_scanned = free_scanned;
		__entry->ns = ns;
	),

	TP_printk("node=%u zone=%u order=%u success=%d migrate_scanned=%lu free_scanned=%lu ns=%llu",
		  __entry->nid, __entry->zone, __entry->order,
		  __entry->success, __entry->migrate_scanned,
		  __entry->free_scanned, __entry->ns)
);

#endif /* MMPOLICY_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
