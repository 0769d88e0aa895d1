/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Empty versions of the macros that mark kfuncs, as no verifier reads them
 * here.
 */
#ifndef SHIM_BTF_H
#define SHIM_BTF_H

#include <stddef.h>

#define __bpf_kfunc
#define __bpf_kfunc_start_defs()	struct nothing
#define __bpf_kfunc_end_defs()		struct nothing
#define THIS_MODULE	NULL

enum { BPF_PROG_TYPE_STRUCT_OPS };

struct btf_kfunc_id_set {
	const void *owner, *set;
};

static inline int register_btf_kfunc_id_set(int type, const struct btf_kfunc_id_set *set)
{
	return 0;
}

#endif /* SHIM_BTF_H */
