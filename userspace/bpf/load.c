// SPDX-License-Identifier: GPL-2.0
/*
 * mmpolicy-bpf: loads a policy in BPF for the command mmpolicy, which explains its errors.
 *
 * mmpolicy-bpf load OBJECT FOLDER	verify, register, pin as FOLDER/POINT/NAME
 * mmpolicy-bpf replace OBJECT FOLDER	verify, register in place of FOLDER/POINT/NAME
 * mmpolicy-bpf verify OBJECT FOLDER	verify only
 *
 * The program reads the object file from standard input. OBJECT is the name of this file; libbpf
 * puts it before the names of its maps. A further argument NAME is the name that the policy must
 * have. On success, the program prints the name of the policy. If it fails, the last line of
 * standard error is "refused STEP ERRNO", after the messages of libbpf and of the verifier.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>

static int print(enum libbpf_print_level level, const char *format, va_list args)
{
	return level <= LIBBPF_WARN ? vfprintf(stderr, format, args) : 0;
}

/*
 * Exits with the line "refused STEP ERRNO" unless @ok. If the step alone
 * explains the failure, the errno means nothing.
 */
static void check(int ok, const char *step)
{
	if (ok)
		return;
	fprintf(stderr, "refused %s %d\n", step, errno);
	exit(1);
}

/*
 * Returns the only policy of an object. The object must not have any other
 * program or policy.
 */
static struct bpf_map *policy_of(const struct bpf_object *object)
{
	struct bpf_map *map, *found = NULL;
	struct bpf_program *program;

	bpf_object__for_each_program(program, object)
		check(bpf_program__type(program) == BPF_PROG_TYPE_STRUCT_OPS, "other");
	bpf_object__for_each_map(map, object) {
		if (bpf_map__type(map) != BPF_MAP_TYPE_STRUCT_OPS)
			continue;
		check(!found, "several");
		found = map;
	}
	check(!!found, "none");
	return found;
}

/* Finds the point of the policy by the name of its type, mmp_POINT_ops. */
static void point_of(const struct btf *btf, const struct btf_type *type, char point[64])
{
	const char *name = type ? btf__name_by_offset(btf, type->name_off) : "";
	int end = 0;

	check(sscanf(name, "mmp_%63[a-z_]%n", point, &end) == 1 && !name[end] && end > 8 &&
	      !strcmp(name + end - 4, "_ops"), "kind");
	point[end - 8] = '\0';
}

/*
 * Returns the name of the policy, a member whose offset the object's BTF gives.
 */
static const char *name_of(const struct btf *btf, const struct btf_type *type,
			   const struct bpf_map *map)
{
	const struct btf_member *member = btf_members(type);
	size_t size;
	const char *value = bpf_map__initial_value((struct bpf_map *)map, &size);

	for (int i = 0; i < btf_vlen(type); i++, member++) {
		const char *at = value + member->offset / 8;

		if (strcmp(btf__name_by_offset(btf, member->name_off), "name"))
			continue;
		check(*at && *at != '.' && memchr(at, '\0', value + size - at) && !strchr(at, '/'),
		      "name");
		return at;
	}
	check(0, "name");
	return NULL;
}

static void make_folder(const char *path)
{
	check(!mkdir(path, 0700) || errno == EEXIST, "folder");
}

static void load(struct bpf_map *map, const char *pin)
{
	struct bpf_link *link = bpf_map__attach_struct_ops(map);

	check(!!link, "register");
	check(!bpf_link__pin(link, pin), "pin");
}

static void replace(struct bpf_map *map, const char *pin)
{
	struct bpf_link *link = bpf_link__open(pin);

	check(!!link, "find");
	check(!bpf_link__update_map(link, map), "register");
}

static void nothing(struct bpf_map *map, const char *pin)
{
}

static const struct verb {
	const char *name;
	void (*act)(struct bpf_map *map, const char *pin);
} verbs[] = { { "load", load }, { "replace", replace }, { "verify", nothing }, {} };

static const struct verb *find_verb(const char *name)
{
	const struct verb *verb = verbs;

	while (verb->name && strcmp(verb->name, name))
		verb++;
	return verb->name ? verb : NULL;
}

int main(int argc, char **argv)
{
	const struct verb *verb = argc == 4 || argc == 5 ? find_verb(argv[1]) : NULL;
	char name[64], point[64], folder[512], pin[600];
	LIBBPF_OPTS(bpf_object_open_opts, opts);
	const struct btf_type *type;
	struct bpf_object *object;
	const struct btf *btf;
	struct bpf_map *map;

	libbpf_set_print(print);
	if (!verb) {
		fputs("usage: mmpolicy-bpf load|replace|verify OBJECT FOLDER [NAME] <FILE\n", stderr);
		return 2;
	}
	opts.object_name = argv[2];
	object = bpf_object__open_file("/proc/self/fd/0", &opts);
	check(!!object, "open");
	map = policy_of(object);
	btf = bpf_object__btf(object);
	type = btf__type_by_id(btf, bpf_map__btf_value_type_id(map));
	point_of(btf, type, point);
	snprintf(name, sizeof(name), "%s", name_of(btf, type, map));
	check(argc == 4 || !strcmp(name, argv[4]), "wanted");
	snprintf(folder, sizeof(folder), "%s/%s", argv[3], point);
	snprintf(pin, sizeof(pin), "%s/%s", folder, name);
	if (verb->act == load) {
		make_folder(argv[3]);
		make_folder(folder);
	}
	check(!bpf_object__load(object), "load");
	verb->act(map, pin);
	puts(name);
	return 0;
}
