// SPDX-License-Identifier: GPL-2.0
/*
 * run [-c CLIENT] PROGRAM [ARGUMENT...]: runs a program and prints one JSON object: ticks (ns of
 * CPU time, under icount instructions), faults and peak memory, including its children. With
 * CLIENT, the program is a server: CLIENT is a shell command that uses the server and is not
 * counted. After it, the server gets SIGTERM. Exits with 0 if the program did, or if that signal
 * ended the server; another signal is named on standard error.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "basics.h"

static pid_t start(char **argv)
{
	pid_t child = fork();

	if (child < 0)
		die("fork");
	if (child)
		return child;
	if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
		die("dup2");
	execvp(*argv, argv);
	die(*argv);
	return -1;
}

static void end_server(pid_t server, const char *client)
{
	if (system(client)) {
		kill(server, SIGKILL);
		die("client");
	}
	kill(server, SIGTERM);
}

static unsigned long long ns(struct timeval t)
{
	return t.tv_sec * 1000000000ULL + t.tv_usec * 1000ULL;
}

int main(int argc, char **argv)
{
	const char *client = argc > 3 && !strcmp(argv[1], "-c") ? argv[2] : NULL;
	struct rusage usage;
	pid_t child;
	int status;

	if (argc < 2) {
		fprintf(stderr, "usage: run [-c CLIENT] PROGRAM [ARGUMENT...]\n");
		return 2;
	}
	child = start(argv + (client ? 3 : 1));
	if (client)
		end_server(child, client);
	if (wait4(child, &status, 0, &usage) != child)
		die("wait4");
	printf("{\"ticks\": %llu, \"faults\": %ld, \"kb\": %ld}\n",
	       ns(usage.ru_utime) + ns(usage.ru_stime), usage.ru_minflt, usage.ru_maxrss);
	if (WIFSIGNALED(status) && !(client && WTERMSIG(status) == SIGTERM))
		fprintf(stderr, "run: the program was ended by signal %d\n", WTERMSIG(status));
	return client ? !(WIFEXITED(status) || WTERMSIG(status) == SIGTERM) : status != 0;
}
