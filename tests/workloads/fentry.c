// SPDX-License-Identifier: GPL-2.0
/*
 * fentry FUNCTION: attaches an empty BPF program to a function of the kernel. Prints "attached"
 * once it is attached, and waits until it is killed. Exits with a message if attaching fails.
 * /proc/PID/fdinfo/9 (PROGRAM) has the number of runs if kernel.bpf_stats_enabled is 1.
 */
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/btf.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "basics.h"

#define PROGRAM	9	/* file descriptor of the BPF program */

static char *read_all(const char *path)
{
	int fd = open(path, O_RDONLY);
	struct stat st;
	char *text;
	long n, got = 0;

	if (fd < 0 || fstat(fd, &st))
		die(path);
	text = malloc(st.st_size);
	while (text && got < st.st_size && (n = read(fd, text + got, st.st_size - got)) > 0)
		got += n;
	if (got != st.st_size)
		die(path);
	close(fd);
	return text;
}

/* Returns the number of bytes that follow struct btf_type in the BTF of a type. */
static size_t more(const struct btf_type *type)
{
	static const size_t each[NR_BTF_KINDS] = {
		[BTF_KIND_STRUCT] = sizeof(struct btf_member),
		[BTF_KIND_UNION] = sizeof(struct btf_member),
		[BTF_KIND_ENUM] = sizeof(struct btf_enum),
		[BTF_KIND_ENUM64] = sizeof(struct btf_enum64),
		[BTF_KIND_FUNC_PROTO] = sizeof(struct btf_param),
		[BTF_KIND_DATASEC] = sizeof(struct btf_var_secinfo),
	};
	static const size_t once[NR_BTF_KINDS] = {
		[BTF_KIND_INT] = sizeof(uint32_t),
		[BTF_KIND_ARRAY] = sizeof(struct btf_array),
		[BTF_KIND_VAR] = sizeof(struct btf_var),
		[BTF_KIND_DECL_TAG] = sizeof(struct btf_decl_tag),
	};
	uint32_t kind = BTF_INFO_KIND(type->info);

	return once[kind] + BTF_INFO_VLEN(type->info) * each[kind];
}

/* Returns the BTF id of a function. */
static uint32_t function_id(const char *name)
{
	const struct btf_header *head = (void *)read_all("/sys/kernel/btf/vmlinux");
	const char *first = (const char *)head + head->hdr_len;
	const char *at = first + head->type_off, *end = at + head->type_len;

	for (uint32_t id = 1; at < end; id++) {
		const struct btf_type *type = (const void *)at;

		if (BTF_INFO_KIND(type->info) == BTF_KIND_FUNC &&
		    !strcmp(first + head->str_off + type->name_off, name))
			return id;
		at += sizeof(*type) + more(type);
	}
	fprintf(stderr, "no function %s in BTF\n", name);
	exit(1);
}

int main(int argc, char **argv)
{
	static const struct bpf_insn nothing[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr attr = {
		.prog_type = BPF_PROG_TYPE_TRACING,
		.insn_cnt = 2,
		.insns = (uintptr_t)nothing,
		.license = (uintptr_t)"GPL",
		.expected_attach_type = BPF_TRACE_FENTRY,
	};
	int fd;

	if (argc != 2)
		return 2;
	attr.attach_btf_id = function_id(argv[1]);
	fd = syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof(attr));
	if (fd < 0 || dup2(fd, PROGRAM) < 0)
		die("BPF_PROG_LOAD");
	memset(&attr, 0, sizeof(attr));
	attr.raw_tracepoint.prog_fd = fd;
	if (syscall(SYS_bpf, BPF_RAW_TRACEPOINT_OPEN, &attr, sizeof(attr)) < 0)
		die("BPF_RAW_TRACEPOINT_OPEN");
	puts("attached");
	fflush(stdout);
	for (;;)
		pause();
}
