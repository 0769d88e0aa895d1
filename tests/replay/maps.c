// SPDX-License-Identifier: GPL-2.0
/*
 * Maps, random numbers and the clock for a policy in BPF that runs in user
 * space.
 */
#include <stdlib.h>
#include <string.h>

typedef unsigned int __u32;
typedef unsigned long long __u64;

#include <bpf/bpf_helpers.h>

enum { ARRAY = 2, PERCPU_ARRAY = 6, LRU_HASH = 9 };

struct entry {
	struct entry *next;	/* the one that was made before it */
	const void *map;
	void *value;
	char key[];
};

static struct entry *entries;

static struct entry **find(const void *map, __u64 key_size, const void *key)
{
	struct entry **at = &entries;

	while (*at && ((*at)->map != map || memcmp((*at)->key, key, key_size)))
		at = &(*at)->next;
	return at;
}

static void drop(struct entry **at)
{
	struct entry *entry = *at;

	*at = entry->next;
	free(entry->value);
	free(entry);
}

/*
 * Returns 1 if a map is full. Makes room in a full LRU map by dropping the
 * oldest entry.
 */
static int is_full(const void *map, __u64 type, __u64 max)
{
	struct entry **oldest = NULL, **at;
	__u64 count = 0;

	for (at = &entries; *at; at = &(*at)->next)
		if ((*at)->map == map) {
			oldest = at;
			count++;
		}
	if (count < max)
		return 0;
	if (type != LRU_HASH)
		return 1;
	drop(oldest);
	return 0;
}

static struct entry *add(const void *map, __u64 key_size, __u64 size, const void *key)
{
	struct entry *entry = calloc(1, sizeof(*entry) + key_size);

	if (!entry)
		abort();
	entry->value = calloc(1, size);
	entry->map = map;
	memcpy(entry->key, key, key_size);
	entry->next = entries;
	return entries = entry;
}

void *shim_lookup(const void *map, __u64 type, __u64 max, __u64 key_size, __u64 size,
		  const void *key)
{
	struct entry *entry = *find(map, key_size, key);

	if (!entry && (type == ARRAY || type == PERCPU_ARRAY) && *(const __u32 *)key < max)
		entry = add(map, key_size, size, key);
	return entry ? entry->value : NULL;
}

long shim_update(const void *map, __u64 type, __u64 max, __u64 key_size, __u64 size,
		 const void *key, const void *value, __u64 flags)
{
	void *to = shim_lookup(map, type, max, key_size, size, key);

	if (!to && (type == ARRAY || type == PERCPU_ARRAY || is_full(map, type, max)))
		return -1;
	memcpy(to ?: add(map, key_size, size, key)->value, value, size);
	return 0;
}

long shim_delete(const void *map, __u64 type, __u64 max, __u64 key_size, __u64 size,
		 const void *key)
{
	struct entry **at = find(map, key_size, key);

	if (!*at || type == ARRAY || type == PERCPU_ARRAY)
		return -1;
	drop(at);
	return 0;
}

/* The same in each run. */
__u32 bpf_get_prandom_u32(void)
{
	static __u64 state = 1;

	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return state >> 32;
}

/* A microsecond for each time that somebody asks. */
__u64 bpf_ktime_get_ns(void)
{
	static __u64 now;

	return now += 1000;
}
