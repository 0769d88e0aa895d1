// SPDX-License-Identifier: GPL-2.0
/* The kernel has hooks: all points are there, and enabling one is all that it takes. */
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

int mmp_provider_hook(enum mm_policy_point point)
{
	return 0;
}

void mmp_provider_unhook(enum mm_policy_point point)
{
}

/* The hooks offer all orders, to the policy alone. */
void mmp_provider_orders(unsigned long orders)
{
}

void mmp_provider_watch(void (*lost)(enum mm_policy_point point, const char *why))
{
}
