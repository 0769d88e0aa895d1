/* SPDX-License-Identifier: GPL-2.0 */
/*
 * All policies, in the order in which sysfs lists them. "stock" means that a
 * point has no policy, so it has no line here. A file that includes this list
 * defines MMP_POLICY() first.
 */
MMP_POLICY(anon_order, adaptive)
MMP_POLICY(anon_order, fixed)
MMP_POLICY(anon_order, never)
MMP_POLICY(anon_order, vma_size)
MMP_POLICY(bulk, adaptive)
MMP_POLICY(bulk, fixed)
MMP_POLICY(compact, budget)
MMP_POLICY(compact, eager)
MMP_POLICY(madv_free, cap)
MMP_POLICY(madv_free, eager)
MMP_POLICY(thp_gfp, light)
MMP_POLICY(thp_gfp, only_compact)
MMP_POLICY(thp_gfp, only_compact_any)
MMP_POLICY(thp_gfp, relaxed)
