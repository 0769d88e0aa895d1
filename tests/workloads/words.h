/* SPDX-License-Identifier: GPL-2.0 */
/* Programs whose command line is a list of words: OP ARGUMENT... OP ARGUMENT... */
#ifndef WORDS_H
#define WORDS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct op {
	const char *name;
	int nr_args;
	const char *args;
	void (*run)(char **arg);
};

/* Runs a shell command, in which $PPID is the PID of this process. */
static inline void op_sh(char **arg)
{
	fflush(stdout);
	if (system(arg[0])) {
		fprintf(stderr, "the shell command failed: %s\n", arg[0]);
		exit(1);
	}
}

static inline const struct op *find_op(const struct op *ops, const char *name, int args)
{
	for (const struct op *op = ops; op->name; op++)
		if (!strcmp(name, op->name) && op->nr_args <= args)
			return op;
	fprintf(stderr, "unknown operation %s, or too few arguments; operations:\n", name);
	for (const struct op *op = ops; op->name; op++)
		fprintf(stderr, "  %s %s\n", op->name, op->args);
	exit(2);
}

/* Runs all operations of the command line. @ops ends with an entry without a name. */
static inline int run_words(const struct op *ops, int argc, char **argv)
{
	for (char **arg = argv + 1; arg < argv + argc;) {
		const struct op *op = find_op(ops, arg[0], argv + argc - arg - 1);

		op->run(arg + 1);
		arg += 1 + op->nr_args;
	}
	return 0;
}

#endif /* WORDS_H */
