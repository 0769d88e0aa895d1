/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_TOPOLOGY_H
#define SHIM_TOPOLOGY_H

#define NUMA_NO_NODE	(-1)
#define MAX_NUMNODES	1

/* The tests have one CPU, on NUMA node 0. */
static inline int numa_mem_id(void)
{
	return 0;
}

#define numa_node_id()	numa_mem_id()

#endif /* SHIM_TOPOLOGY_H */
