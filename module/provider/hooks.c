// SPDX-License-Identifier: GPL-2.0
/*
 * Provider for kernels with the mm_policy hooks: all points are available, and
 * nothing has to be attached.
 */
#ifdef CONFIG_X86
#include <asm/cpufeature.h>
#endif

#include "provider.h"

const char *const mmp_provider = "hooks";
u64 mmp_fingerprint;
const char *mmp_tested;

const char *mmp_provider_lacks(enum mm_policy_point point)
{
#ifdef CONFIG_X86
	if (point == MM_POLICY_ANON_ORDER && cpu_feature_enabled(X86_FEATURE_XENPV))
		return "page tables of Xen PV are not supported";
#endif
	return NULL;
}

const struct mmp_function *mmp_provider_functions(int *nr)
{
	*nr = 0;
	return NULL;
}

void mmp_provider_hook(enum mm_policy_point point)
{
}

void mmp_provider_unhook(enum mm_policy_point point)
{
}

bool mmp_provider_hooked(enum mm_policy_point point)
{
	return true;
}

bool mmp_provider_detaching(void)
{
	return false;
}

int mmp_provider_wait_for(enum mm_policy_point point, unsigned int ms)
{
	return 0;
}

void mmp_provider_wait(unsigned int ms)
{
}

ssize_t mmp_provider_blockers(char *buf)
{
	return 0;
}

/*
 * Does nothing: a kernel with the hooks asks the policy about all orders, also
 * those that sysfs does not enable.
 */
void mmp_provider_orders(unsigned long orders)
{
}

void mmp_provider_watch(const struct mmp_watcher *watcher)
{
}
