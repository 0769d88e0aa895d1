/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The helpers listed in docs/writing-a-policy.md, for a policy that is compiled
 * for user space.
 */
#ifndef SHIM_BPF_HELPERS_H
#define SHIM_BPF_HELPERS_H

#define SEC(name)		__attribute__((used))
#define __ksym
#ifndef __always_inline
#define __always_inline		inline __attribute__((always_inline))
#endif
#define __noinline		__attribute__((noinline))
#define __uint(name, value)	int (*name)[value]
#define __type(name, value)	__typeof__(value) *name

/*
 * A map is identified by its address. The types of its members describe it;
 * they are never read.
 */
#define shim_of(map)							\
	(map), sizeof(*(map)->type) / sizeof(int), sizeof(*(map)->max_entries) / sizeof(int), \
	sizeof(*(map)->key), sizeof(*(map)->value)

void *shim_lookup(const void *map, __u64 type, __u64 max, __u64 key_size, __u64 size,
		  const void *key);
long shim_update(const void *map, __u64 type, __u64 max, __u64 key_size, __u64 size,
		 const void *key, const void *value, __u64 flags);
long shim_delete(const void *map, __u64 type, __u64 max, __u64 key_size, __u64 size,
		 const void *key);

#define bpf_map_lookup_elem(map, key)			shim_lookup(shim_of(map), key)
#define bpf_map_lookup_percpu_elem(map, key, cpu)	shim_lookup(shim_of(map), key)
#define bpf_map_update_elem(map, key, value, flags)	shim_update(shim_of(map), key, value, flags)
#define bpf_map_delete_elem(map, key)			shim_delete(shim_of(map), key)

/* Ring buffers have no reader here. */
#define bpf_ringbuf_output(map, data, size, flags)	0L
#define bpf_ringbuf_reserve(map, size, flags)		((void *)0)
#define bpf_ringbuf_submit(data, flags)			((void)(data))
#define bpf_ringbuf_discard(data, flags)		((void)(data))

__u32 bpf_get_prandom_u32(void);
__u64 bpf_ktime_get_ns(void);

/* The replay has one process on one CPU, and no time passes. */
#define bpf_get_smp_processor_id()	0U
#define bpf_get_numa_node_id()		0L
#define bpf_get_current_pid_tgid()	(1ULL << 32 | 1)
#define bpf_jiffies64()			0ULL
#define bpf_trace_printk(format, size, ...)	__builtin_printf(format, ##__VA_ARGS__)
#define bpf_printk(format, ...)		__builtin_printf(format "\n", ##__VA_ARGS__)

#endif /* SHIM_BPF_HELPERS_H */
