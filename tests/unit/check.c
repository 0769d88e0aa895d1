// SPDX-License-Identifier: GPL-2.0
/* Runs each test in a process of its own, so a crash ends only its own test. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define MAX_TESTS	256
#define MAX_SECONDS	120	/* of CPU time per test, so a busy machine fails no test */
#define MAX_FAILURES	10	/* printed per test */

static struct {
	const char *name;
	void (*run)(void);
} tests[MAX_TESTS];
static int nr_tests, failures;
static char place[128];

void at(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(place, sizeof(place), fmt, args);
	va_end(args);
}

void test_add(const char *name, void (*run)(void))
{
	if (nr_tests == MAX_TESTS)
		abort();
	tests[nr_tests].name = name;
	tests[nr_tests++].run = run;
}

void test_failed(const char *file, int line, const char *what, double a, double b)
{
	if (failures++ < MAX_FAILURES)
		printf("%s:%d: expected %s, got %g and %g%s%s\n", file, line, what, a, b,
		       *place ? " at " : "", place);
}

static bool passes(void (*run)(void))
{
	static const struct rlimit limit = { MAX_SECONDS, RLIM_INFINITY };
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child) {
		setrlimit(RLIMIT_CPU, &limit);
		run();
		exit(failures > 0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return false;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
		printf("takes more than %d s of CPU time\n", MAX_SECONDS);
	return !status;
}

/*
 * Returns true if no words are given, or if the test's name contains one of
 * them.
 */
static bool wanted(const char *name, char **words)
{
	if (!*words)
		return true;
	while (*words)
		if (strstr(name, *words++))
			return true;
	return false;
}

/* Arguments: [-x] [WORD...]. With -x, stops after the first failed test. */
int main(int argc, char **argv)
{
	const bool one = argc > 1 && !strcmp(argv[1], "-x");
	int i, passed = 0, failed = 0;

	for (i = 0; i < nr_tests && !(one && failed); i++) {
		bool ok;

		if (!wanted(tests[i].name, argv + 1 + one))
			continue;
		ok = passes(tests[i].run);
		printf("%-6s %s\n", ok ? "ok" : "FAILED", tests[i].name);
		passed += ok;
		failed += !ok;
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed || !passed;
}
