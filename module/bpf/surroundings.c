// SPDX-License-Identifier: GPL-2.0
/* Kfuncs about the node and the cgroup. Their answers are hints, which may be slightly stale. */
#include <linux/btf.h>
#include <linux/cgroup.h>
#include <linux/memcontrol.h>
#include <linux/mmzone.h>
#include <linux/psi_types.h>
#include <linux/sched/loadavg.h>
#include <linux/topology.h>

#include "../compat.h"
#include "bpf.h"
#include "told.h"

__bpf_kfunc_start_defs();

/*
 * Returns the number of free blocks of 2^@order pages on the node of this CPU;
 * a larger free block counts as several.
 */
__bpf_kfunc u64 mmp_bpf_free(const struct mmp_told *told, u32 order)
{
	const struct zone *zones = NODE_DATA(numa_mem_id())->node_zones;
	u64 blocks = 0;

	for (int zone = 0; zone < MAX_NR_ZONES; zone++)
		for (u32 i = order; i < NR_PAGE_ORDERS; i++)
			blocks += (u64)READ_ONCE(zones[zone].free_area[i].nr_free) << (i - order);
	trace_mmpolicy_bpf_question(told, "free", order, 0, blocks);
	return blocks;
}

/*
 * Returns the owner of the address space, whose cgroup also selects the
 * profile; NULL if the owner has exited. If a debugger writes to the memory of
 * a process, the process is the owner.
 */
static struct task_struct *bpf_owner(const struct mmp_told *told)
{
	const struct mm_struct *mm = told->mm;

	return mm && mm != current->mm ? mmp_mm_owner(mm) : current;
}

/*
 * Returns the pages charged to the cgroup of the process; 0 in the root cgroup,
 * where the kernel counts none.
 */
__bpf_kfunc u64 mmp_bpf_cgroup_pages(const struct mmp_told *told)
{
	u64 pages = 0;

#ifdef CONFIG_MEMCG
	struct task_struct *owner = bpf_owner(told);

	if (owner)
		pages = page_counter_read(&mem_cgroup_from_task(owner)->memory);
#endif
	trace_mmpolicy_bpf_question(told, "cgroup_pages", 0, 0, pages);
	return pages;
}

/*
 * Returns the PSI memory pressure of the cgroup: "some" over the last 10
 * seconds, in percent; 0 in the root cgroup.
 */
__bpf_kfunc u32 mmp_bpf_pressure(const struct mmp_told *told)
{
	u32 percent = 0;

#if defined(CONFIG_PSI) && defined(CONFIG_CGROUPS)
	struct task_struct *owner = bpf_owner(told);
	const struct psi_group *psi = owner ? task_dfl_cgroup(owner)->psi : NULL;

	if (psi)
		percent = LOAD_INT(READ_ONCE(psi->avg[PSI_MEM_SOME][0]));
#endif
	trace_mmpolicy_bpf_question(told, "pressure", 0, 0, percent);
	return percent;
}

__bpf_kfunc_end_defs();
