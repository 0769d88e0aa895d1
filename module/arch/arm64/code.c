// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel rewrites its machine code for each boot and CPU (alternatives, constants of the
 * boot), so the build ID of the kernel stands for all of its code. It is among the notes of the
 * image, which /sys/kernel/notes shows. Each build has a fingerprint of its own.
 */
#include "../../provider/direct.h"

/**
 * mmp_code_begin - add the notes of the kernel's image
 * @to: takes them
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
 * mmp_code_add - nothing, as the build ID stands for all functions
 * @at: the code of a function
 * @size: of the code
 */
void mmp_code_add(const void *at, size_t size)
{
}
