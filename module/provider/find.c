// SPDX-License-Identifier: GPL-2.0
/* Finds the symbols and types of the running kernel that the points need (needs.h). */
#include <linux/bits.h>
#include <linux/kernel.h>
#include <linux/seq_buf.h>
#include <linux/string.h>

#include "direct.h"

enum kind { HOOK, CALL, VARIABLE, MEMBER, NOTHING };

#define UNFIT		BIT(31)
#define MMP_WAY(way)	BIT(MMP_WAY_##way)
#define MMP_ONLY(have)	(MMP_HAVE_##have ? 0 : UNFIT)
#define MMP_NOT(have)	(MMP_HAVE_##have ? UNFIT : 0)

/*
 * One of the kernel symbols that can meet a need (a row of needs.h), and the variants (enum
 * mmp_way) of the module that are used if the kernel has this symbol.
 */
struct one {
	const char *name;
	const char *type;
	u32 follows;
};

#define MMP_ALWAYS		.when = 0
#define MMP_IF(way)		.when = MMP_WAY(way)
#define MMP_UNLESS(way)		.unless = MMP_WAY(way)
#define MMP_HOOK(of, id, if, ...) \
	[MMP_NEED_##id] = { .point = MM_POLICY_##of, .kind = HOOK, if, .one = { __VA_ARGS__ } },
#define MMP_CALL(of, id, if, ...) \
	[MMP_NEED_##id] = { .point = MM_POLICY_##of, .kind = CALL, if, .one = { __VA_ARGS__ } },
#define MMP_VARIABLE(of, id, if, ...) \
	[MMP_NEED_##id] = { .point = MM_POLICY_##of, .kind = VARIABLE, if, .one = { __VA_ARGS__ } },
#define MMP_MEMBER(of, id, if, in, ...) \
	[MMP_NEED_##id] = { .point = MM_POLICY_##of, .kind = MEMBER, if, .structure = #in, \
			    .one = { __VA_ARGS__ } },
#define MMP_NOTHING(of, id, why) \
	[MMP_NEED_##id] = { .point = MM_POLICY_##of, .kind = NOTHING, .one = { { why } } },

static const struct need {
	enum mm_policy_point point;
	enum kind kind;
	u32 when, unless;
	const char *structure;
	struct one one[3];
} needs[MMP_NEEDS] = {
#include "needs.h"
};

static struct {
	const char *name;
	void *at;
} found[MMP_NEEDS];

int mmp_offset[MMP_NEEDS] __read_mostly;

static u32 ways;	/* bitmap of enum mmp_way: variants of this kernel */

#define for_each_one(one, need)						\
	for ((one) = (need)->one;					\
	     (one) < (need)->one + ARRAY_SIZE((need)->one) && (one)->name; (one)++)

static bool take_function(enum mmp_need id, const struct one *one)
{
	char text[128];

	if (!mmp_prototype(one->name, text, sizeof(text)) || strcmp(text, one->type))
		return false;
	found[id].at = mmp_symbol(one->name);
	return found[id].at;
}

static bool take(enum mmp_need id, const struct one *one)
{
	const struct need *need = &needs[id];

	if (one->follows & UNFIT)
		return false;
	found[id].name = one->name;
	switch (need->kind) {
	case VARIABLE:
		found[id].at = mmp_symbol(one->name);
		return found[id].at;
	case MEMBER:
		mmp_offset[id] = mmp_member_at(need->structure, one->name, one->type);
		return mmp_offset[id] >= 0;
	case NOTHING:
		return false;
	default:
		return take_function(id, one);
	}
}

/*
 * Writes to @reason why this kernel does not meet a need (a row of needs.h). If a function exists
 * with another prototype than expected, this is a better reason than a missing function, so it is
 * reported first.
 */
static void say_why(const struct need *need, struct seq_buf *reason)
{
	const struct one *one, *last = NULL;
	char text[128];

	if (need->kind == NOTHING) {
		seq_buf_puts(reason, need->one->name);
		return;
	}
	for_each_one(one, need) {
		if (need->kind > CALL || !mmp_prototype(one->name, text, sizeof(text)))
			continue;
		if (strcmp(text, one->type))
			seq_buf_printf(reason, "%s has become %s", one->name, text);
		else
			seq_buf_printf(reason, "the symbol %s is missing or not unique", one->name);
		return;
	}
	if (need->kind == MEMBER)
		seq_buf_printf(reason, "%s has no %s", need->structure, need->one->type);
	else
		seq_buf_printf(reason, "the kernel has no %s",
			       need->kind == VARIABLE ? "variable" : "function");
	for_each_one(one, need) {
		if (!last || strcmp(last->name, one->name))
			seq_buf_printf(reason, "%s %s", last ? " or" : "", one->name);
		last = one;
	}
}

static bool find(enum mmp_need id)
{
	const struct one *one;

	for_each_one(one, &needs[id]) {
		if (take(id, one)) {
			ways |= one->follows;
			return true;
		}
	}
	return false;
}

/**
 * mmp_needs_find - find all symbols and types that a point needs
 * @point: the point
 * @reason: buffer for the reason of an error
 * @size: size of @reason
 *
 * Context: may sleep; after mmp_prototypes_init().
 * Return: 0 or -EOPNOTSUPP.
 */
int mmp_needs_find(enum mm_policy_point point, char *reason, size_t size)
{
	struct seq_buf s;
	int id;

	for (id = MMP_NEED_NONE + 1; id < MMP_NEEDS; id++) {
		const struct need *need = &needs[id];

		if (need->point != point || (need->when & ~ways) || (need->unless & ways) ||
		    find(id))
			continue;
		seq_buf_init(&s, reason, size);
		say_why(need, &s);
		seq_buf_str(&s);
		return -EOPNOTSUPP;
	}
	return 0;
}

/**
 * mmp_found - get the address of a needed function or variable
 * @need: the need
 *
 * Context: after mmp_needs_find(), like the functions below.
 */
void *mmp_found(enum mmp_need need)
{
	return found[need].at;
}

/*
 * Returns the name of the kernel function that meets a need (a row of needs.h); the name differs
 * between kernels.
 */
const char *mmp_found_name(enum mmp_need need)
{
	return found[need].name;
}

bool mmp_way(enum mmp_way way)
{
	return ways & BIT(way);
}
