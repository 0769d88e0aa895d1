// SPDX-License-Identifier: GPL-2.0
/*
 * bindstorm SECONDS: some processes fork, fault, move to other cgroups and exit, while other
 * processes create, set, bind and delete profiles, create and remove cgroups, run experiments, let
 * leases expire and reset everything. Prints counts as one JSON object; exits with status 1 if a
 * page held unexpected data, or if an operation failed with an unexpected error.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "folios.h"

#define ROOT		"/sys/kernel/mmpolicy/"
#define CGROUPS		"/sys/fs/cgroup/storm"
#define PROFILES	4
#define CGROUP_NAMES	4	/* cgroups on each of two levels */
#define WORKERS		3
#define PAGES		512UL

/* Shared by all processes. */
static struct {
	atomic_ulong created, deleted, bound, unbound, enabled, resets, expired;
	atomic_ulong born, moved, refused, mismatches;
	_Atomic pid_t children[WORKERS];	/* PID of each worker's latest child */
} *all;

static uint64_t rng;
static time_t end;

static unsigned int below(unsigned int n)
{
	rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
	return (rng >> 33) % n;
}

/* Returns true for errors of an operation whose object another process has removed or changed. */
static bool expected(int error)
{
	static const int errors[] = {
		EBUSY, EEXIST, EINVAL, ENODEV, ENOENT, ENOSPC, ESRCH,
	};

	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
		if (error == errors[i])
			return true;
	return false;
}

static bool done(int result, const char *what)
{
	if (result >= 0)
		return true;
	if (!expected(errno))
		die(what);
	all->refused++;
	return false;
}

/* Writes a formatted line to the file @path. */
__attribute__((format(printf, 2, 3)))
static bool put(const char *path, const char *format, ...)
{
	int fd = open(path, O_WRONLY);
	bool ok = done(fd, path);
	va_list args;

	if (!ok)
		return false;
	va_start(args, format);
	ok = done(vdprintf(fd, format, args), path);
	va_end(args);
	close(fd);
	return ok;
}

/* Returns the path of a file in a random profile, which may not exist. */
static const char *of_profile(const char *file)
{
	static char path[128];

	snprintf(path, sizeof(path), ROOT "profiles/p%u/%s", below(PROFILES), file);
	return path;
}

/* Returns the path of a file in a random cgroup, on the first or the second level. */
static const char *a_cgroup(const char *file)
{
	static char path[128];
	int n = snprintf(path, sizeof(path), CGROUPS "/%u/", below(CGROUP_NAMES));

	if (below(2))
		n += snprintf(path + n, sizeof(path) - n, "%u/", below(CGROUP_NAMES));
	snprintf(path + n, sizeof(path) - n, "%s", file);
	return path;
}

/* ---- Actors, each repeated in a process of its own */

static void make_profiles(void)
{
	static const char *const policies[] = { "stock", "never", "fixed", "adaptive" };

	all->created += put(ROOT "profiles/create", "p%u", below(PROFILES));
	put(of_profile("anon_order/policy"), "%s", policies[below(4)]);
	all->deleted += put(ROOT "profiles/delete", "p%u", below(PROFILES));
}

static void bind_processes(void)
{
	pid_t pid = all->children[below(WORKERS)];
	const char *pids = of_profile("pids");

	all->bound += put(pids, "%d", pid);
	if (below(2))
		all->unbound += put(pids, "-%d", pid);
}

static void bind_cgroups(void)
{
	const char *cgroups = of_profile("cgroups");
	struct stat st;

	if (!done(stat(a_cgroup(""), &st), "stat"))
		return;
	all->bound += put(cgroups, "%lu", st.st_ino);
	if (below(2))
		all->unbound += put(cgroups, "-%lu", st.st_ino);
}

static void make_cgroups(void)
{
	done(mkdir(a_cgroup(""), 0755), "mkdir");
	if (!below(3))
		done(rmdir(a_cgroup("")), "rmdir");
}

static void experiment(void)
{
	put(ROOT "experiment/unit", "%s", below(2) ? "process" : "cgroup");
	put(ROOT "experiment/control", "p%u", below(PROFILES));
	put(ROOT "experiment/treatment", "p%u", below(PROFILES));
	all->enabled += put(ROOT "experiment/enabled", "1");
	put(ROOT "experiment/percent", "%u", below(101));
	if (below(2))
		put(ROOT "experiment/enabled", "0");
	usleep(below(50000));
}

/* Sleeps while the other actors work, then lets a lease expire, or not, and resets everything. */
static void start_anew(void)
{
	usleep(500000 + below(2500000));
	if (below(2)) {
		put(ROOT "lease_ms", "100");
		usleep(150000);
		all->expired += !put(ROOT "lease_ms", "0");
	}
	all->resets += put(ROOT "reset", "1");
}

static void fault(void)
{
	uint64_t *word = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t stamp = (uint64_t)getpid() << 32;
	size_t step = 1UL << below(5);

	if (word == MAP_FAILED)
		die("mmap");
	for (size_t i = 0; i < PAGES; i += step)
		word[i * PAGE / 8] = stamp | i;
	for (size_t i = 0; i < PAGES; i++)
		all->mismatches += word[i * PAGE / 8] != (i % step ? 0 : stamp | i);
	munmap(word, PAGES * PAGE);
}

static void live(void)
{
	for (int i = below(8); i >= 0; i--) {
		all->moved += put(a_cgroup("cgroup.procs"), "0");
		fault();
		if (!below(4) && fork() < 0)	/* the child runs the rest of this loop, too */
			die("fork");
	}
	fault();
	_exit(0);
}

static void bear(int worker)
{
	pid_t pid = fork();
	int status;

	if (pid < 0)
		die("fork");
	if (!pid) {
		rng += getpid();
		live();
	}
	all->children[worker] = pid;
	all->born++;
	if (waitpid(pid, &status, 0) != pid || status)
		die("waitpid");
}

static void work_0(void) { bear(0); }
static void work_1(void) { bear(1); }
static void work_2(void) { bear(2); }

static void (*const actors[])(void) = {
	make_profiles, bind_processes, bind_cgroups, make_cgroups, experiment, start_anew,
	work_0, work_1, work_2,
};

#define ACTORS	(sizeof(actors) / sizeof(*actors))

static pid_t start(unsigned int actor)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid)
		return pid;
	for (rng = actor; time(NULL) < end;) {
		actors[actor]();
		pause_cpu();
	}
	exit(0);
}

static void report(void)
{
	printf("{\"created\": %lu, \"deleted\": %lu, \"bound\": %lu, \"unbound\": %lu, ",
	       all->created, all->deleted, all->bound, all->unbound);
	printf("\"enabled\": %lu, \"resets\": %lu, \"expired\": %lu, \"born\": %lu, ",
	       all->enabled, all->resets, all->expired, all->born);
	printf("\"moved\": %lu, \"refused\": %lu, \"mismatches\": %lu}\n", all->moved,
	       all->refused, all->mismatches);
}

int main(int argc, char **argv)
{
	int failed = 0, status;

	if (argc != 2) {
		fprintf(stderr, "usage: bindstorm SECONDS\n");
		return 2;
	}
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED || (mkdir(CGROUPS, 0755) && errno != EEXIST))
		die(CGROUPS);
	prctl(PR_SET_CHILD_SUBREAPER, 1);	/* also wait for orphans */
	end = time(NULL) + atoi(argv[1]);
	for (unsigned int i = 0; i < ACTORS; i++)
		start(i);
	while (wait(&status) > 0)
		failed += status != 0;
	report();
	return failed || all->mismatches;
}
