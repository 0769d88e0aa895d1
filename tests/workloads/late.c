// SPDX-License-Identifier: GPL-2.0
/*
 * late BPF-COMMAND MS PROGRAM [ARGUMENT]...: runs PROGRAM, and stops it for MS milliseconds before
 * its first bpf() call with this command, as a busy machine may. Prints "late: stopped" to stderr.
 * Exits with PROGRAM's status, or with 1 if PROGRAM never makes this call.
 */
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basics.h"

static pid_t start(char **argv)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid)
		return pid;
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		die("ptrace");
	execvp(*argv, argv);
	die(*argv);
	return 0;
}

static void at_each_call(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status) ||
	    ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD) ||
	    ptrace(PTRACE_SYSCALL, pid, NULL, NULL))
		die("ptrace");
}

static int is_it(pid_t pid, unsigned long command)
{
	struct user_regs_struct registers;

	if (ptrace(PTRACE_GETREGS, pid, NULL, &registers))
		die("registers");
	return registers.orig_rax == SYS_bpf && registers.rdi == command;
}

int main(int argc, char **argv)
{
	int status, late = 0;
	pid_t pid;

	if (argc < 4) {
		fputs("usage: late BPF-COMMAND MS PROGRAM [ARGUMENT]...\n", stderr);
		return 2;
	}
	pid = start(argv + 3);
	at_each_call(pid);
	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		if (!late && WSTOPSIG(status) == (SIGTRAP | 0x80) &&
		    is_it(pid, strtoul(argv[1], NULL, 0))) {
			fputs("late: stopped\n", stderr);
			usleep(strtoul(argv[2], NULL, 0) * 1000);
			late = 1;
		}
		ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
	}
	return late && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
