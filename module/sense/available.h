/* SPDX-License-Identifier: GPL-2.0 */
/* How much memory each node has left, looked at ten times a second. */
#ifndef MMPOLICY_AVAILABLE_H
#define MMPOLICY_AVAILABLE_H

#include <linux/mm.h>
#include <linux/topology.h>

extern u16 mmp_node_available[MAX_NUMNODES];

void mmp_available_watch(bool on);

/**
 * mmp_available - memory available on the node of this CPU
 *
 * Return: in 1/1000 of the node, as of the last look.
 */
static inline unsigned int mmp_available(void)
{
	return READ_ONCE(mmp_node_available[numa_node_id()]);
}

#endif /* MMPOLICY_AVAILABLE_H */
