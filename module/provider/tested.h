/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Kernel builds on which the point anon_order was tested without the mm_policy
 * hooks, and the guest tests (tests/guest) that ran there. Builds may share a
 * fingerprint. docs/testing.md, "Another kernel", says how to add one.
 */
#ifndef MMPOLICY_TESTED_H
#define MMPOLICY_TESTED_H

#include <linux/types.h>

static const struct {
	u64 fingerprint;
	const char *release;
} mmp_tested_kernels[] = {
	/*
	 * test_stock_fingerprint.py, and the tests of test_stock_closed.py with other users of
	 * hooked functions
	 */
	{ 0x55dfc8b5ab903087, "6.12.117+deb12-cloud-amd64" },
	/*
	 * test_stock_fingerprint.py, and the tests of test_stock_kernel.py about neighbours and
	 * each way of ending
	 */
	{ 0x5bf701817b307752, "6.12.117+deb12-amd64" },
	/* all guest tests that run by default */
	{ 0x042e4a271c95f6ce, "6.12.117+deb13-cloud-amd64" },
	{ 0x5bfe8be4becaf505, "6.12.117+deb13-amd64" },
	{ 0xa8267d99cd8c4a94, "7.2.12+deb13-cloud-amd64" },
	{ 0xa8267d99cd8c4a94, "7.2.12+deb13-amd64" },
	/* test_stock_fingerprint.py, and the test of test_stock_closed.py with ftrace's sysctl */
	{ 0x97f039e91f71a0fd, "7.3.4+deb13-cloud-amd64" },
};

#endif /* MMPOLICY_TESTED_H */
