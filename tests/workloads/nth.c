// SPDX-License-Identifier: GPL-2.0
/*
 * nth MODULE.ko STEP DO UNDO: does DO repeatedly, and lets one allocation of the module fail each
 * time: the first one, then the second one, and so on to the last; with a STEP above 1, only one in
 * STEP of them. DO and UNDO are one of
 *
 *	load PARAMETERS		unload -	write FILE=TEXT
 *	fork -			nothing -
 *
 * Only allocations by the module's code, directly or in functions that it calls, are counted. If DO
 * fails, all files and the number of faults must be as before DO. If it succeeds, they must be as
 * after DO without a failed allocation. Then UNDO is done. Prints one JSON object; exits with
 * status 1 at a deviation.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tree.h"

#define MODULES_START	"0xffffffffa0000000"	/* of x86-64, without KASLR */
#define MODULES_END	"0xffffffffff000000"
#define DEBUGFS		"/sys/kernel/debug/"
#define AREA		(1UL << 20)

static const char *module;
static unsigned int nth;	/* which allocation fails; 0: none */
static bool reached;
static int fail_fd;

__attribute__((format(printf, 1, 2), noreturn))
static void wrong(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	exit(1);
}

/* ---- Making allocations fail */

static void set(const char *attr, const char *file, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), DEBUGFS "%s/%s", attr, file);
	if (tree_put(path, value, strlen(value)))
		die(path);
}

/* Enables failures of all allocations by modules, including those that may sleep. */
static void set_up(void)
{
	static const char *const attrs[] = { "failslab", "fail_page_alloc" };

	for (int i = 0; i < 2; i++) {
		set(attrs[i], "ignore-gfp-wait", "N");
		set(attrs[i], "verbose", "0");
		set(attrs[i], "require-start", MODULES_START);
		set(attrs[i], "require-end", MODULES_END);
	}
	set("fail_page_alloc", "ignore-gfp-highmem", "N");
	set("fail_page_alloc", "min-order", "0");
}

static void arm(void)
{
	char text[16];

	fail_fd = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	if (fail_fd < 0 || pwrite(fail_fd, text, sprintf(text, "%u", nth), 0) < 0)
		die("fail-nth");
}

/* Ends the failures. Sets @reached if DO made at least @nth allocations. */
static void disarm(void)
{
	char left[16] = "";

	if (pread(fail_fd, left, sizeof(left) - 1, 0) < 0 || pwrite(fail_fd, "0", 1, 0) < 0)
		die("fail-nth");
	reached = !atoi(left);
	close(fail_fd);
}

/* ---- Actions: return 0 or an errno */

static int do_load(char *params)
{
	return module_load(module, params);
}

static int do_unload(char *unused)
{
	return module_unload();
}

static int do_write(char *words)
{
	char path[256];
	char *text = strchr(words, '=');

	snprintf(path, sizeof(path), "%.*s", (int)(text - words), words);
	return tree_put(path, text + 1, strlen(text + 1));
}

static int do_nothing(char *unused)
{
	return 0;
}

/* Returns the faults that it takes to fill an area, which depend on the policy. */
static long faults(void)
{
	char *area = mmap(NULL, 2 * AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);
	char *start = (char *)(((uintptr_t)area + AREA - 1) & -AREA);
	struct rusage before, after;

	if (area == MAP_FAILED)
		die("mmap");
	getrusage(RUSAGE_SELF, &before);
	for (size_t i = 0; i < AREA; i += PAGE)
		start[i] = 1;
	getrusage(RUSAGE_SELF, &after);
	munmap(area, 2 * AREA);
	return after.ru_minflt - before.ru_minflt;
}

static unsigned int children[2];	/* children: [1] with the binding, [0] without */

/* Forks a child, and counts whether it inherits this process's binding (to "never"). */
static int do_fork(char *unused)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return errno;
	if (!pid)
		_exit(faults() >= (long)(AREA / PAGE));
	if (waitpid(pid, &status, 0) < 0 || !WIFEXITED(status))
		die("waitpid");
	children[WEXITSTATUS(status)]++;
	return 0;
}

static const struct act {
	const char *name;
	int (*run)(char *words);
} acts[] = {
	{ "load", do_load },	{ "unload", do_unload },	{ "write", do_write },
	{ "fork", do_fork },	{ "nothing", do_nothing },
};

static const struct act *act_of(const char *name)
{
	for (size_t i = 0; i < sizeof(acts) / sizeof(*acts); i++)
		if (!strcmp(acts[i].name, name))
			return &acts[i];
	wrong("unknown action %s\n", name);
}

/* ---- State before and afterwards */

struct there {
	char *files;
	long faults;
};

static struct there look(void)
{
	return (struct there){ tree_snapshot(), faults() };
}

static void same(struct there now, const struct there *then, const char *when, int err)
{
	if (strcmp(now.files, then->files) || now.faults != then->faults)
		wrong("allocation %u, errno %d, %s: %ld faults, not %ld, and\n%s\nnot\n%s\n", nth,
		      err, when, now.faults, then->faults, now.files, then->files);
	free(now.files);
}

static int run(const struct act *act, char *words, unsigned int n)
{
	int err;

	nth = n;
	if (nth)
		arm();
	err = act->run(words);
	if (nth)
		disarm();
	return err;
}

static void must(const struct act *act, char *words)
{
	int err = run(act, words, 0);

	if (err)
		wrong("%s %s: %s\n", act->name, words, strerror(err));
}

int main(int argc, char **argv)
{
	unsigned int failed = 0, tolerated = 0;
	struct there before, done;
	const struct act *act, *undo;
	unsigned int step;

	if (argc != 7)
		wrong("usage: nth MODULE.ko STEP DO WORDS UNDO WORDS\n");
	module = *++argv;
	step = atoi(*++argv);
	act = act_of(argv[1]);
	undo = act_of(argv[3]);
	set_up();
	mlockall(MCL_CURRENT);
	faults();
	before = look();
	must(act, argv[2]);
	done = look();
	reached = true;
	for (unsigned int n = 1; reached; n += step) {
		int err;

		must(undo, argv[4]);
		same(look(), &before, "undone", 0);
		err = run(act, argv[2], n);
		same(look(), err ? &before : &done, "afterwards", err);
		if (err && (err != ENOMEM || !reached))
			wrong("allocation %u: %s\n", n, strerror(err));
		failed += err != 0;
		tolerated += !err && reached;
		if (err)
			must(act, argv[2]);	/* DO must still work after the failure */
	}
	must(undo, argv[4]);
	same(look(), &before, "in the end", 0);
	printf("{\"failed\": %u, \"tolerated\": %u, \"unbound\": %u}\n", failed, tolerated,
	       children[0]);
	return 0;
}
