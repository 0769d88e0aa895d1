// SPDX-License-Identifier: GPL-2.0
/*
 * Probes of the kernel's headers; the module does not link this file.
 * features.sh compiles it once, and writes MMP_HAVE_<name> into features.h for
 * each TRY() line: 0 if the line has an error, else 1. compat.h uses the
 * results.
 */
#include <linux/bpf.h>
#include <linux/ftrace.h>
#include <linux/huge_mm.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/sysfs.h>
#include <linux/workqueue.h>
#ifdef CONFIG_X86
#include <asm/ibt.h>
#endif
#include <trace/events/sched.h>
#include <trace/events/vmscan.h>
#if __has_include(<linux/leafops.h>)
#include <linux/leafops.h>
#endif

extern struct vm_area_struct *vma;
extern struct bin_attribute *attribute;
extern struct folio *folio;
extern struct ftrace_ops *ops;
extern struct mem_cgroup *memcg;

void mmp_reclaim(void *data, gfp_t gfp, int order, struct mem_cgroup *memcg);
void mmp_exit(void *data, struct task_struct *task, bool group_dead);
ssize_t mmp_read(struct file *file, struct kobject *kobj, const struct bin_attribute *attr,
		 char *to, loff_t at, size_t size);

#define TRY(name, ...) static inline void try_##name(void) { __VA_ARGS__; }

/*
 * ANYTHING must compile and NOTHING must not; otherwise the probe itself is
 * broken.
 */
TRY(ANYTHING, (void)0)
TRY(NOTHING, mmp_nothing_has_this_name())

TRY(BIN_ATTRIBUTE_CONST, attribute->read = mmp_read)
TRY(COLLAPSE_TO_ALL_SIZES, (void)MTHP_STAT_COLLAPSE_ALLOC)
TRY(EXIT_GROUP_DEAD, check_trace_callback_type_sched_process_exit(mmp_exit))
TRY(FOLIO_FLAGS_IN_STRUCT, (void)folio->flags.f)
TRY(FTRACE_OPS_FUNC_IP, ops->ops_func(ops, 0UL, FTRACE_OPS_CMD_ENABLE_SHARE_IPMODIFY_SELF))
TRY(IS_ENDBR_AT_PLACE, __is_endbr(0))
TRY(MEMCG_PRIVATE_ID, (void)mem_cgroup_private_id(memcg))
TRY(MM_FLAGS, mm_flags_test(MMF_HAS_PINNED, vma->vm_mm))
TRY(PCPU_HOT, (void)pcpu_hot.current_task)
TRY(RECLAIM_GFP_FIRST, check_trace_callback_type_mm_vmscan_direct_reclaim_begin(mmp_reclaim))
TRY(SOFTLEAF, softleaf_is_migration(softleaf_from_pte(__pte(0))))
TRY(SYSTEM_DFL_WQ, (void)system_dfl_wq)
TRY(THP_DISABLED_FORCED, vma_thp_disabled(vma, vma->vm_flags, false))
TRY(TVA_TYPE, (void)TVA_PAGEFAULT)
TRY(ZERO_PFN_BY_ADDRESS, (void)zero_pfn(0UL))
