/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Differences between kernels, each named by the feature. (arch/ has those
 * between architectures.) The build tests the headers (features.c), and the
 * module tests the running kernel when it is loaded (provider/needs.h). Only a
 * difference that neither test can see goes by the kernel's version.
 */
#ifndef MMPOLICY_COMPAT_H
#define MMPOLICY_COMPAT_H

#include <linux/pgtable.h>
#include <linux/swap.h>
#include <linux/version.h>

#include "features.h"

/*
 * Differences by version, each with the reason why no test can see it.
 *
 * Since 6.17, madvise() may hold the lock of the VMA instead of mmap_lock. Only
 * code inside mm/madvise.c changed; no header, type or symbol of the kernels
 * with the hooks shows it.
 */
#define MMP_MADVISE_LOCKS_VMA	(LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0))

#if MMP_HAVE_SOFTLEAF
#include <linux/leafops.h>
#else
#include <linux/swapops.h>
#endif

/*
 * Declarations of the mm_policy hooks: the kernel's, or on a stock kernel those
 * that provider/ implements.
 */
#ifdef CONFIG_MM_POLICY
#include <linux/mm_policy.h>
#else
#include "mm_policy.h"
#endif

/*
 * True if BPF programs can be policies. They need struct_ops of modules, their
 * BTF, and the JIT.
 */
#if defined(CONFIG_BPF_SYSCALL) && defined(CONFIG_BPF_JIT) && defined(CONFIG_DEBUG_INFO_BTF_MODULES)
#define MMP_BPF		1
#define mmp_bpf_lacks(module)						\
	((module)->btf_data_size ? NULL : "the module was built without BTF")
#else
#define MMP_BPF		0
#define mmp_bpf_lacks(module)						\
	((void)(module), "this kernel has no BPF system call, no JIT for it or no BTF of modules")
#endif

/* Older verifiers pass untrusted pointers to a kfunc unless it has this flag. */
#ifdef KF_TRUSTED_ARGS
#define MMP_TRUSTED_ARGS	KF_TRUSTED_ARGS
#else
#define MMP_TRUSTED_ARGS	0
#endif

/*
 * Each macro tests for one site in the fault path. Only a kernel with the
 * patches of large-folio-faults/ asks about these sites; on any other kernel,
 * the macro is always false.
 */
#ifdef MM_POLICY_REUSE
#define mmp_is_reuse(site)	unlikely((site) == MM_POLICY_REUSE)
#else
#define mmp_is_reuse(site)	((void)(site), false)
#endif
#ifdef MM_POLICY_COPY
#define mmp_is_copy(site)	unlikely((site) == MM_POLICY_COPY)
#else
#define mmp_is_copy(site)	((void)(site), false)
#endif
#ifdef MM_POLICY_SINGLES
#define mmp_is_singles(site)	unlikely((site) == MM_POLICY_SINGLES)
#define mmp_are_singles(vmf, order)	(!(vmf)->page && (order) < PMD_ORDER)
#else
#define mmp_is_singles(site)	((void)(site), false)
#define mmp_are_singles(vmf, order)	((void)(vmf), (void)(order), false)
#endif
#ifdef MM_POLICY_READ
#define mmp_is_read(site)	unlikely((site) == MM_POLICY_READ)
#else
#define mmp_is_read(site)	((void)(site), false)
#endif

/*
 * The reason to refuse a policy that needs the mm_policy hooks; NULL on a
 * kernel with them.
 */
#ifdef CONFIG_MM_POLICY
#define MMP_NEEDS_HOOKS(reason)	(0 ? (reason) : NULL)
#else
#define MMP_NEEDS_HOOKS(reason)	(reason)
#endif

/*
 * On a kernel without the hooks, a bit of gfp_t that the kernel does not use.
 * provider/thp_gfp.c makes it mean "compact, but do not reclaim".
 */
#ifndef __GFP_ONLY_COMPACT
#define __GFP_ONLY_COMPACT	((__force gfp_t)BIT(___GFP_UNUSED_BIT))
#endif

#include "arch/table.h"

/*
 * Returns the node that a fault in @vma prefers: the one that the application's
 * memory policy prefers, else the node of the CPU. NUMA_NO_NODE if the memory
 * policy does not prefer a single node.
 */
#ifdef CONFIG_NUMA
#define mmp_preferred_node(vma) ({					\
	const struct mempolicy *policy = (vma)->vm_policy;		\
									\
	if (!policy)							\
		policy = current->mempolicy;				\
	!policy || policy->mode == MPOL_LOCAL ? numa_node_id() :	\
	policy->mode == MPOL_PREFERRED ? first_node(policy->nodes) :	\
					 NUMA_NO_NODE;			\
})

/*
 * Returns the nodes that @vma may allocate from. The allocator uses no other,
 * even if they are full.
 */
#define mmp_allowed_nodes(vma) ({					\
	const struct mempolicy *policy = (vma)->vm_policy;		\
									\
	if (!policy)							\
		policy = current->mempolicy;				\
	policy && policy->mode == MPOL_BIND ? &policy->nodes :		\
					      &cpuset_current_mems_allowed; \
})
#define mmp_vma_policy(vma)	((vma)->vm_policy)
#else
#define mmp_preferred_node(vma)	((void)(vma), numa_node_id())
#define mmp_allowed_nodes(vma)	((void)(vma), &node_states[N_MEMORY])
#define mmp_vma_policy(vma)	((void)(vma), NULL)
#endif

/*
 * Returns the task that owns @mm; NULL if it has exited, or without CONFIG_MEMCG. Context: RCU read
 * side.
 */
#ifdef CONFIG_MEMCG
#define mmp_mm_owner(mm)	rcu_dereference((mm)->owner)
#else
#define mmp_mm_owner(mm)	((mm) ? (struct task_struct *)NULL : NULL)
#endif

/* True if @mm has at most @pages anonymous pages. */
#define mmp_anon_pages_within(mm, pages)				\
	(percpu_counter_compare(&(mm)->rss_stat[MM_ANONPAGES], pages) <= 0)

/* True if a page of the process was ever pinned. */
#if MMP_HAVE_MM_FLAGS
#define mmp_has_pinned(mm)	mm_flags_test(MMF_HAS_PINNED, mm)
#else
#define mmp_has_pinned(mm)	test_bit(MMF_HAS_PINNED, &(mm)->flags)
#endif

/* True if prctl() or madvise() forbids large folios in the VMA. */
#if MMP_HAVE_THP_DISABLED_FORCED
#define mmp_thp_disabled(vma)	vma_thp_disabled(vma, (vma)->vm_flags, false)
#else
#define mmp_thp_disabled(vma)	vma_thp_disabled(vma, (vma)->vm_flags)
#endif

/*
 * Reads the flags of a folio that may be freed at any time, so without the
 * kernel's assertions.
 */
#if MMP_HAVE_FOLIO_FLAGS_IN_STRUCT
#define mmp_folio_flags(folio)	READ_ONCE((folio)->flags.f)
#else
#define mmp_folio_flags(folio)	READ_ONCE((folio)->flags)
#endif

/* Returns the id of a memory cgroup, which is below 65,536. */
#if MMP_HAVE_MEMCG_PRIVATE_ID
#define mmp_memcg_slot(memcg)	mem_cgroup_private_id(memcg)
#else
#define mmp_memcg_slot(memcg)	mem_cgroup_id(memcg)
#endif

/* True if @pte, which is not present, is a migration entry. */
#if MMP_HAVE_SOFTLEAF
#define mmp_is_moving(pte)	softleaf_is_migration(softleaf_from_pte(pte))
#else
#define mmp_is_moving(pte)	is_migration_entry(pte_to_swp_entry(pte))
#endif

/* The system's unbound workqueue, which has a new name in newer kernels. */
#if MMP_HAVE_SYSTEM_DFL_WQ
#define mmp_unbound_wq		system_dfl_wq
#else
#define mmp_unbound_wq		system_unbound_wq
#endif

/* Parameters of ftrace_ops.ops_func(), to which newer kernels have added @ip. */
#if MMP_HAVE_FTRACE_OPS_FUNC_IP
#define MMP_OPS_FUNC_ARGS	struct ftrace_ops *op, unsigned long ip, enum ftrace_ops_cmd cmd
#else
#define MMP_OPS_FUNC_ARGS	struct ftrace_ops *op, enum ftrace_ops_cmd cmd
#endif

/*
 * Parameters, which differ between kernels, of tracepoint probes and of read callbacks of sysfs
 * files.
 */
#if MMP_HAVE_RECLAIM_GFP_FIRST
#define MMP_RECLAIM_ARGS	gfp_t gfp, int order, struct mem_cgroup *memcg
#else
#define MMP_RECLAIM_ARGS	int order, gfp_t gfp
#endif
#if MMP_HAVE_EXIT_GROUP_DEAD
#define MMP_EXIT_ARGS		struct task_struct *task, bool group_dead
#else
#define MMP_EXIT_ARGS		struct task_struct *task
#endif
#if MMP_HAVE_BIN_ATTRIBUTE_CONST
#define MMP_BIN_ATTRIBUTE	const struct bin_attribute
#else
#define MMP_BIN_ATTRIBUTE	struct bin_attribute
#endif

/*
 * Tests of the reason that the kernel passes when it asks which orders a VMA
 * allows: a fault, khugepaged, or a forced collapse (MADV_COLLAPSE), which
 * ignores the settings in sysfs.
 */
#if MMP_HAVE_TVA_TYPE
#define MMP_TVA_FAULT		TVA_PAGEFAULT
#define mmp_tva_collapse(why)	((u32)(why) == TVA_KHUGEPAGED)
#define mmp_tva_forced(why)	((u32)(why) == TVA_FORCED_COLLAPSE)
#else
#define MMP_TVA_FAULT		(TVA_IN_PF | TVA_ENFORCE_SYSFS)
#define mmp_tva_collapse(why)	((why) == TVA_ENFORCE_SYSFS)
#define mmp_tva_forced(why)	(!((why) & TVA_ENFORCE_SYSFS))
#endif
#define mmp_tva_fault(why)	((u32)(why) == MMP_TVA_FAULT)

/*
 * MMP_KHUGEPAGED_SIZES: folio orders (bitmap) that make the kernel start khugepaged if sysfs
 * enables one. MMP_COLLAPSE_ASKS: khugepaged asks for the allowed orders of each range that it
 * scans, and skips the range if there are none.
 */
#if MMP_HAVE_COLLAPSE_TO_ALL_SIZES
#define MMP_KHUGEPAGED_SIZES	THP_ORDERS_ALL_ANON
#define MMP_COLLAPSE_ASKS	true
#else
#define MMP_KHUGEPAGED_SIZES	BIT(PMD_ORDER)
#define MMP_COLLAPSE_ASKS	false
#endif

/*
 * Try to lock all VMAs of the process during madvise(); mmp_vmas_unlock()
 * unlocks them. Newer kernels hold only the lock of the advised VMA, so this
 * takes mmap_lock. Older kernels already hold mmap_lock, so this does nothing.
 */
#if MMP_MADVISE_LOCKS_VMA
#define mmp_vmas_trylock(mm)	mmap_read_trylock(mm)
#define mmp_vmas_unlock(mm)	mmap_read_unlock(mm)
#else
#define mmp_vmas_trylock(mm)	((void)(mm), true)
#define mmp_vmas_unlock(mm)	((void)(mm))
#endif

/* For tests: the zero page, and a macro that declares a tracepoint under its own name. */
#if MMP_HAVE_ZERO_PFN_BY_ADDRESS
#define mmp_zero_pfn(addr)	zero_pfn(addr)
#else
#define mmp_zero_pfn(addr)	my_zero_pfn(addr)
#endif
#ifdef DECLARE_TRACE_EVENT
#define MMP_DECLARE_TRACE	DECLARE_TRACE_EVENT
#else
#define MMP_DECLARE_TRACE	DECLARE_TRACE
#endif

#endif /* MMPOLICY_COMPAT_H */
