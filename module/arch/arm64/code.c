// SPDX-License-Identifier: GPL-2.0
/*
 * On arm64, the fingerprint of the kernel hashes the kernel's build ID in place
 * of its code, because the kernel patches its machine code at each boot and for
 * each CPU (alternatives, boot-time constants). The build ID is one of the ELF
 * notes of the image, as in /sys/kernel/notes. So each build of the kernel has
 * its own fingerprint.
 */
#include "../../provider/direct.h"

/**
 * mmp_code_begin - pass the ELF notes of the kernel's image to a callback
 * @to: the callback, which hashes them
 *
 * Context: after mmp_needs_find().
 */
void mmp_code_begin(mmp_add_fn to)
{
	const void *start = mmp_symbol("__start_notes"), *stop = mmp_symbol("__stop_notes");

	if (start && stop > start)
		to(start, stop - start);
}

/**
 * mmp_code_add - do nothing, as the build ID stands for the code of all
 * functions
 * @at: the code of a function
 * @size: its size in bytes
 */
void mmp_code_add(const void *at, size_t size)
{
}
