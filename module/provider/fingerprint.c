// SPDX-License-Identifier: GPL-2.0
/*
 * The fingerprint of the kernel code behind the point anon_order. It hashes
 * prototypes and structures in the kernel's BTF, and the machine code of
 * functions that read the enabled sizes or handle a fault, because a function
 * may change its meaning and keep its prototype.
 *
 * Code that differs from boot to boot is left out (arch/). So one build has one
 * fingerprint on all machines, and the next build shares it if none of these
 * parts changed.
 */
#include <linux/kallsyms.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/siphash.h>
#include <linux/string.h>
#include <linux/utsname.h>

#include "direct.h"
#include "fingerprint.h"
#include "tested.h"

static bool untested;
module_param(untested, bool, 0444);
MODULE_PARM_DESC(untested, "use the point anon_order on a kernel that nobody has tried it on");

u64 mmp_fingerprint;
const char *mmp_tested;

/*
 * Kernel functions whose code is part of the fingerprint. A kernel may lack
 * some of them, because it has others or because the compiler inlined them.
 */
static const char *const functions[] = {
	/* Faults */
	"__handle_mm_fault", "do_anonymous_page", "do_huge_pmd_anonymous_page", "do_swap_page",
	"map_anon_folio_pte_nopf", "map_anon_folio_pmd_nopf", "swapin_sync",
	/*
	 * Functions that read the enabled sizes, or that ask which sizes a VMA
	 * may have
	 */
	"__thp_vma_allowable_orders", "anon_enabled_show", "anon_enabled_store",
	"start_stop_khugepaged", "set_recommended_min_free_kbytes", "hugepage_pmd_enabled",
	"hugepage_pmd_enabled.part.0", "hugepage_enabled", "khugepaged", "khugepaged_enter_vma",
	"khugepaged_min_free_kbytes_update", "hugepage_vma_revalidate",
	"hugepage_vma_revalidate.isra.0", "collapse_pte_mapped_thp",
	"try_collapse_pte_mapped_thp", "collapse_single_pmd", "madvise_collapse", "show_smap",
};

/*
 * Kernel structures whose layout is part of the fingerprint. An entry without a
 * member stands for the whole structure.
 */
static const struct {
	const char *structure;
	const char *member;
} layouts[] = {
	{ "vm_fault" },
	{ "thpsize" },
	{ "vm_area_struct", "vm_start" },
	{ "vm_area_struct", "vm_end" },
	{ "vm_area_struct", "vm_mm" },
	{ "vm_area_struct", "vm_flags" },
	{ "vm_area_struct", "vm_ops" },
	{ "vm_area_struct", "vm_policy" },
	{ "vm_area_struct", "vm_userfaultfd_ctx" },
};

/*
 * Adds @size bytes to the fingerprint. The hash so far is the key of the next
 * one, so all parts and their order count.
 */
static void add(const void *data, size_t size)
{
	const siphash_key_t before = { { mmp_fingerprint, size } };

	mmp_fingerprint = siphash(data, size, &before);
}

static void add_text(const char *text)
{
	add(text, strlen(text));
}

static void add_member(const char *name, const char *type, unsigned int bits)
{
	add_text(name);
	add_text(type);
	add(&bits, sizeof(bits));
}

/*
 * Returns the number of bytes from @at to the end of its function; 0 if that is
 * not known.
 */
static size_t code_left(const void *at)
{
	static char text[KSYM_SYMBOL_LEN];
	const char *place;
	unsigned long offset, size;

	sprint_symbol(text, (unsigned long)at);
	place = strrchr(text, '+');
	return place && sscanf(place, "+%li/%li", &offset, &size) == 2 ? size - offset : 0;
}

static void add_functions(void)
{
	/*
	 * The kernel patches its code under this lock, so the code is
	 * consistent while the lock is held.
	 */
	struct mutex *patching = mmp_symbol("text_mutex");
	char prototype[128];
	int i;

	for (i = 0; i < ARRAY_SIZE(functions); i++) {
		const void *at = mmp_symbol(functions[i]);

		add_text(functions[i]);
		if (!at)
			continue;
		if (mmp_prototype(functions[i], prototype, sizeof(prototype)))
			add_text(prototype);
		if (patching)
			mutex_lock(patching);
		mmp_code_add(at, code_left(at));
		if (patching)
			mutex_unlock(patching);
	}
}

int mmp_fingerprint_check(char *reason, size_t size)
{
	const char *release;
	int i;

	mmp_code_begin(add);
	for (i = 0; i < ARRAY_SIZE(layouts); i++)
		mmp_layout(layouts[i].structure, layouts[i].member, add_member);
	add_functions();
	for (i = 0; i < ARRAY_SIZE(mmp_tested_kernels); i++) {
		release = mmp_tested_kernels[i].release;
		if (mmp_tested_kernels[i].fingerprint == mmp_fingerprint &&
		    (!mmp_tested || !strcmp(release, init_utsname()->release)))
			mmp_tested = release;
	}
	if (mmp_tested || untested)
		return 0;
	snprintf(reason, size, "not tried on this build (fingerprint %016llx); %s", mmp_fingerprint,
		 "load the module with untested=1 to try it");
	return -EOPNOTSUPP;
}
