/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions, variables and structure members that each point needs in the
 * running kernel. The module looks them up by BTF and symbols when it is loaded
 * (find.c). `mmpolicy doctor --kernel` looks them up in the image of another
 * kernel. Files that include this one define the macros of the rows first.
 *
 * MMP_HOOK(point, id, when, one, ...)		a function that calls the module
 * MMP_CALL(point, id, when, one, ...)		a function that the module calls
 * MMP_VARIABLE(point, id, when, one)		a variable of the kernel
 * MMP_MEMBER(point, id, when, structure, one)	a member of a structure of the kernel
 * MMP_NOTHING(point, id, why)			no kernel can meet this need; @why is the reason
 *
 * Each @one is { name, type }. The type of a function is its prototype without
 * argument names; a variable has no type. The first @one that exists with this
 * type meets the need. Its MMP_WAY() records a variant (enum mmp_way) of this
 * kernel. @when of later rows depends on variants: MMP_ALWAYS, MMP_IF() or
 * MMP_UNLESS(). MMP_ONLY(x) and MMP_NOT(x) restrict a @one to builds whose
 * headers have, or lack, feature x of features.h.
 */

/* Functions that handle faults, and that ask for the allowed sizes */
MMP_HOOK(ANON_ORDER, fault, MMP_ALWAYS, { "do_anonymous_page", "vm_fault_t(vm_fault*)" })
MMP_HOOK(ANON_ORDER, huge, MMP_ALWAYS,
	 { "do_huge_pmd_anonymous_page", "vm_fault_t(vm_fault*)" })
MMP_HOOK(ANON_ORDER, swapin, MMP_ALWAYS, { "do_swap_page", "vm_fault_t(vm_fault*)" })
MMP_CALL(ANON_ORDER, pte_alloc, MMP_ALWAYS, { "__pte_alloc", "int(mm_struct*, pmd_t*)" })
MMP_CALL(ANON_ORDER, anon_prepare, MMP_ALWAYS,
	 { "__vmf_anon_prepare", "vm_fault_t(vm_fault*)" })
MMP_HOOK(ANON_ORDER, orders, MMP_ALWAYS,
	 { "__thp_vma_allowable_orders",
	 "long unsigned int(vm_area_struct*, vm_flags_t, tva_type, long unsigned int)",
	 MMP_ONLY(TVA_TYPE) },
	 { "__thp_vma_allowable_orders",
	 "long unsigned int(vm_area_struct*, vm_flags_t, long unsigned int, long unsigned int)",
	 MMP_NOT(TVA_TYPE) },
	 { "__thp_vma_allowable_orders",
	 "long unsigned int(vm_area_struct*, long unsigned int, long unsigned int, long unsigned int)",
	 MMP_NOT(TVA_TYPE) })

/* Variables and functions for the sizes that sysfs enables, and for khugepaged */
MMP_VARIABLE(ANON_ORDER, always, MMP_ALWAYS, { "huge_anon_orders_always" })
MMP_VARIABLE(ANON_ORDER, madvise, MMP_ALWAYS, { "huge_anon_orders_madvise" })
MMP_VARIABLE(ANON_ORDER, inherit, MMP_ALWAYS, { "huge_anon_orders_inherit" })
MMP_VARIABLE(ANON_ORDER, sizes_lock, MMP_ALWAYS, { "huge_anon_orders_lock" })
MMP_VARIABLE(ANON_ORDER, thp_flags, MMP_ALWAYS, { "transparent_hugepage_flags" })
MMP_VARIABLE(ANON_ORDER, khugepaged, MMP_ALWAYS, { "khugepaged_thread" })
MMP_HOOK(ANON_ORDER, show, MMP_ALWAYS,
	 { "anon_enabled_show", "ssize_t(kobject*, kobj_attribute*, char*)" })
MMP_HOOK(ANON_ORDER, store, MMP_ALWAYS,
	 { "anon_enabled_store", "ssize_t(kobject*, kobj_attribute*, char const*, size_t)" })
MMP_HOOK(ANON_ORDER, start_stop, MMP_ALWAYS, { "start_stop_khugepaged", "int()" })
MMP_HOOK(ANON_ORDER, collapse, MMP_ALWAYS,
	 { "collapse_single_pmd",
	 "scan_result(long unsigned int, vm_area_struct*, bool*, collapse_control*)",
	 MMP_WAY(COLLAPSE_ADDRESS_FIRST) },
	 { "hpage_collapse_scan_pmd",
	 "scan_result(mm_struct*, vm_area_struct*, long unsigned int, bool*, collapse_control*)" },
	 { "hpage_collapse_scan_pmd",
	 "int(mm_struct*, vm_area_struct*, long unsigned int, bool*, collapse_control*)" })
MMP_CALL(ANON_ORDER, enter, MMP_ALWAYS,
	 { "khugepaged_enter_vma", "void(vm_area_struct*, vm_flags_t)" },
	 { "khugepaged_enter_vma", "void(vm_area_struct*, long unsigned int)" })
#ifdef MMP_DECODES
MMP_CALL(ANON_ORDER, decode, MMP_ALWAYS,
	 { "insn_decode", "int(insn*, void const*, int, insn_mode)" })
#endif

#ifdef MMP_FOLDS
MMP_HOOK(ANON_ORDER, set_ptes, MMP_ALWAYS,
	 { "contpte_set_ptes",
	 "void(mm_struct*, long unsigned int, pte_t*, pte_t, unsigned int)" })
MMP_HOOK(ANON_ORDER, try_fold, MMP_ALWAYS,
	 { "__contpte_try_fold", "void(mm_struct*, long unsigned int, pte_t*, pte_t)" })
#endif

/*
 * Functions that choose the flags to allocate a large folio, that reclaim, or that charge memory to
 * a cgroup
 */
MMP_HOOK(THP_GFP, thp_gfp, MMP_ALWAYS, { "vma_thp_gfp_mask", "gfp_t(vm_area_struct*)" })
MMP_HOOK(THP_GFP, reclaim, MMP_ALWAYS,
	 { "try_to_free_pages", "long unsigned int(zonelist*, int, gfp_t, nodemask_t const*)" },
	 { "try_to_free_pages", "long unsigned int(zonelist*, int, gfp_t, nodemask_t*)" })
MMP_HOOK(THP_GFP, reclaim_cgroup, MMP_ALWAYS,
	 { "try_to_free_mem_cgroup_pages",
	 "long unsigned int(mem_cgroup*, long unsigned int, gfp_t, unsigned int, int*)" })
MMP_HOOK(THP_GFP, reclaim_node, MMP_ALWAYS,
	 { "node_reclaim", "long unsigned int(pglist_data*, gfp_t, unsigned int)",
	 MMP_WAY(NODE_RECLAIM_COUNTS) },
	 { "node_reclaim", "int(pglist_data*, gfp_t, unsigned int)" })
MMP_HOOK(THP_GFP, charge, MMP_ALWAYS,
	 { "try_charge_memcg", "int(mem_cgroup*, gfp_t, unsigned int)" })

MMP_HOOK(COMPACT, compact, MMP_ALWAYS,
	 { "compact_zone", "compact_result(compact_control*, capture_control*)" })
MMP_MEMBER(COMPACT, zone, MMP_ALWAYS, compact_control, { "zone", "zone*" })
MMP_MEMBER(COMPACT, order, MMP_ALWAYS, compact_control, { "order", "int" })
MMP_MEMBER(COMPACT, gfp, MMP_ALWAYS, compact_control, { "gfp_mask", "gfp_t const" })
MMP_MEMBER(COMPACT, direct, MMP_ALWAYS, compact_control, { "direct_compaction", "bool" })
MMP_MEMBER(COMPACT, whole, MMP_ALWAYS, compact_control, { "whole_zone", "bool" })
MMP_MEMBER(COMPACT, migrate_scanned, MMP_ALWAYS, compact_control,
	   { "total_migrate_scanned", "long unsigned int" })
MMP_MEMBER(COMPACT, free_scanned, MMP_ALWAYS, compact_control,
	   { "total_free_scanned", "long unsigned int" })

MMP_HOOK(MADV_FREE, madv_free, MMP_ALWAYS,
	 { "madvise_dontneed_free_valid_vma", "bool(madvise_behavior*)",
	 MMP_WAY(MADVISE_IN_ONE) },
	 { "madvise_dontneed_free_valid_vma",
	 "bool(vm_area_struct*, long unsigned int, long unsigned int*, int)" })
MMP_CALL(MADV_FREE, zap, MMP_UNLESS(MADVISE_IN_ONE),
	 { "zap_page_range_single",
	 "void(vm_area_struct*, long unsigned int, long unsigned int, zap_details*)" })
MMP_CALL(MADV_FREE, zap_batched, MMP_IF(MADVISE_IN_ONE),
	 { "zap_vma_range_batched",
	 "void(mmu_gather*, vm_area_struct*, long unsigned int, long unsigned int, zap_details*)" },
	 { "zap_page_range_single_batched",
	 "void(mmu_gather*, vm_area_struct*, long unsigned int, long unsigned int, zap_details*)" })
MMP_MEMBER(MADV_FREE, madvise_vma, MMP_IF(MADVISE_IN_ONE), madvise_behavior,
	   { "vma", "vm_area_struct*" })
MMP_MEMBER(MADV_FREE, madvise_behavior, MMP_IF(MADVISE_IN_ONE), madvise_behavior,
	   { "behavior", "int" })
MMP_MEMBER(MADV_FREE, madvise_range, MMP_IF(MADVISE_IN_ONE), madvise_behavior,
	   { "range", "madvise_behavior_range" })
MMP_MEMBER(MADV_FREE, madvise_tlb, MMP_IF(MADVISE_IN_ONE), madvise_behavior,
	   { "tlb", "mmu_gather*" })
MMP_MEMBER(MADV_FREE, range_start, MMP_IF(MADVISE_IN_ONE), madvise_behavior_range,
	   { "start", "long unsigned int" })
MMP_MEMBER(MADV_FREE, range_end, MMP_IF(MADVISE_IN_ONE), madvise_behavior_range,
	   { "end", "long unsigned int" })

MMP_NOTHING(BULK, bulk, "needs a kernel with CONFIG_MM_POLICY")

#undef MMP_HOOK
#undef MMP_CALL
#undef MMP_VARIABLE
#undef MMP_MEMBER
#undef MMP_NOTHING
