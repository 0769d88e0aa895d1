// SPDX-License-Identifier: GPL-2.0
/*
 * Reads prototypes of functions from the kernel's BTF. A function with other arguments than
 * expected must not be hooked.
 */
#include <linux/mm.h>
#include <linux/seq_buf.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <uapi/linux/btf.h>

#include "direct.h"

static const struct btf_header *btf;
static const struct btf_type **types;	/* indexed by the type's number */
static u32 nr_types;

static const void *btf_section(u32 offset)
{
	return (const void *)btf + btf->hdr_len + offset;
}

static const char *btf_name(u32 offset)
{
	return btf_section(btf->str_off) + offset;
}

/*
 * Returns the type after @type; NULL if the kind of @type is unknown, because
 * its size is unknown then.
 */
static const struct btf_type *btf_next(const struct btf_type *type)
{
	static const u8 each[NR_BTF_KINDS] = {
		[BTF_KIND_STRUCT] = sizeof(struct btf_member),
		[BTF_KIND_UNION] = sizeof(struct btf_member),
		[BTF_KIND_ENUM] = sizeof(struct btf_enum),
		[BTF_KIND_ENUM64] = sizeof(struct btf_enum64),
		[BTF_KIND_FUNC_PROTO] = sizeof(struct btf_param),
		[BTF_KIND_DATASEC] = sizeof(struct btf_var_secinfo),
	};
	static const u8 once[NR_BTF_KINDS] = {
		[BTF_KIND_INT] = sizeof(u32),
		[BTF_KIND_ARRAY] = sizeof(struct btf_array),
		[BTF_KIND_VAR] = sizeof(struct btf_var),
		[BTF_KIND_DECL_TAG] = sizeof(struct btf_decl_tag),
	};
	u32 kind = BTF_INFO_KIND(type->info);

	if (kind > BTF_KIND_ENUM64)
		return NULL;
	return (const void *)(type + 1) + once[kind] + BTF_INFO_VLEN(type->info) * each[kind];
}

/*
 * Fills types[], so that each BTF type can be found by its number. Type 0 is void. Returns false
 * for a type of unknown kind, as the types after it cannot be found.
 */
static bool btf_number_types(void)
{
	const struct btf_type *type = btf_section(btf->type_off);
	const struct btf_type *end = btf_section(btf->type_off + btf->type_len), *next;

	for (nr_types = 1; type < end; type = next) {
		next = btf_next(type);
		if (!next)
			return false;
		types[nr_types++] = type;
	}
	return true;
}

/**
 * mmp_prototypes_init - read the kernel's BTF, for mmp_prototype()
 *
 * Context: may sleep.
 * Return: %NULL, or the reason why BTF cannot be read.
 */
const char *mmp_prototypes_init(void)
{
	btf = mmp_symbol("__start_BTF");
	if (!btf || btf->magic != BTF_MAGIC || btf->version != BTF_VERSION)
		return "needs a kernel with BTF";
	types = kvcalloc(btf->type_len / sizeof(**types) + 1, sizeof(*types), GFP_KERNEL);
	if (!types)
		return "no memory for the types of the kernel's BTF";
	return btf_number_types() ? NULL : "the kernel's BTF has a type of unknown kind";
}

/* Frees the table of types. mmp_prototype() must not be called afterwards. */
void mmp_prototypes_exit(void)
{
	kvfree(types);
	types = NULL;
	nr_types = 0;
}

/* Prints the type with this BTF number as in C, with const after the type: "char const*". */
static void btf_print(struct seq_buf *s, u32 number)
{
	static const char *const after[NR_BTF_KINDS] = {
		[BTF_KIND_PTR] = "*", [BTF_KIND_CONST] = " const",
		[BTF_KIND_VOLATILE] = " volatile", [BTF_KIND_RESTRICT] = " restrict",
	};
	const char *parts[8];
	int depth = 0;

	while (number && number < nr_types && depth < ARRAY_SIZE(parts) &&
	       after[BTF_INFO_KIND(types[number]->info)]) {
		parts[depth++] = after[BTF_INFO_KIND(types[number]->info)];
		number = types[number]->type;
	}
	if (number < nr_types)
		seq_buf_puts(s, number ? btf_name(types[number]->name_off) : "void");
	while (depth--)
		seq_buf_puts(s, parts[depth]);
}

static const struct btf_type *btf_find(u32 kind, const char *name)
{
	u32 nr;

	for (nr = 1; nr < nr_types; nr++)
		if (BTF_INFO_KIND(types[nr]->info) == kind &&
		    !strcmp(btf_name(types[nr]->name_off), name))
			return types[nr];
	return NULL;
}

static bool btf_is(u32 number, const char *type)
{
	char text[64];
	struct seq_buf s;

	seq_buf_init(&s, text, sizeof(text));
	btf_print(&s, number);
	return !strcmp(seq_buf_str(&s), type);
}

/**
 * mmp_member_at - find the offset of a member in a structure of the kernel
 * @structure: name of the structure
 * @member: name of the member
 * @type: expected type, as mmp_prototype() prints it
 *
 * Context: as for mmp_prototype().
 * Return: offset in bytes; -1 if there is no such member of this type.
 */
int mmp_member_at(const char *structure, const char *member, const char *type)
{
	const struct btf_type *found = btf_find(BTF_KIND_STRUCT, structure);
	const struct btf_member *each = (const void *)(found + 1);
	int i, bits;

	for (i = 0; found && i < BTF_INFO_VLEN(found->info); i++, each++) {
		bits = BTF_INFO_KFLAG(found->info) ? BTF_MEMBER_BIT_OFFSET(each->offset) :
						     each->offset;
		if (!strcmp(btf_name(each->name_off), member))
			return btf_is(each->type, type) && !(bits % 8) ? bits / 8 : -1;
	}
	return -1;
}

/**
 * mmp_prototype - get result type and argument types of a kernel function
 * @function: name of the function
 * @text: buffer for "result(argument, argument)", without names
 * @size: size of @text
 *
 * Context: between mmp_prototypes_init() and mmp_prototypes_exit().
 * Return: true if there is such a function.
 */
bool mmp_prototype(const char *function, char *text, size_t size)
{
	const struct btf_type *found = btf_find(BTF_KIND_FUNC, function), *proto;
	const struct btf_param *param;
	struct seq_buf s;
	u32 i;

	if (!found || found->type >= nr_types)
		return false;
	proto = types[found->type];
	param = (const void *)(proto + 1);
	seq_buf_init(&s, text, size);
	btf_print(&s, proto->type);
	for (i = 0; i < BTF_INFO_VLEN(proto->info); i++) {
		seq_buf_puts(&s, i ? ", " : "(");
		btf_print(&s, param[i].type);
	}
	seq_buf_puts(&s, i ? ")" : "()");
	return seq_buf_str(&s);
}

/*
 * Passes the members of a structure to @take, including those of its unnamed
 * structures.
 */
static void btf_layout(const struct btf_type *type, const char *only, unsigned int before,
		       mmp_layout_fn take)
{
	const struct btf_member *member = (const void *)(type + 1);
	const struct btf_type *inner;
	unsigned int bits;
	char text[64];
	struct seq_buf s;
	u32 i, number;

	for (i = 0; i < BTF_INFO_VLEN(type->info); i++, member++) {
		bits = before + (BTF_INFO_KFLAG(type->info) ?
				 BTF_MEMBER_BIT_OFFSET(member->offset) : member->offset);
		for (number = member->type; number && number < nr_types &&
		     BTF_INFO_KIND(types[number]->info) == BTF_KIND_CONST;)
			number = types[number]->type;
		inner = number < nr_types ? types[number] : NULL;
		if (!*btf_name(member->name_off) && inner) {
			btf_layout(inner, only, bits, take);
		} else if (!only || !strcmp(only, btf_name(member->name_off))) {
			seq_buf_init(&s, text, sizeof(text));
			btf_print(&s, member->type);
			take(btf_name(member->name_off), seq_buf_str(&s), bits);
		}
	}
}

/**
 * mmp_layout - list the members of a structure of the kernel
 * @structure: name of the structure
 * @member: list only this member, or all if %NULL
 * @take: called for each member with its name, its type and its offset in bits
 *
 * Context: as for mmp_prototype().
 */
void mmp_layout(const char *structure, const char *member, mmp_layout_fn take)
{
	const struct btf_type *type = btf_find(BTF_KIND_STRUCT, structure);

	if (type)
		btf_layout(type, member, 0, take);
}
