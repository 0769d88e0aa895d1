// SPDX-License-Identifier: GPL-2.0
/*
 * fuzz MODULE.ko SEED WRITES WORKERS: writes random texts to all files of the module. WORKERS
 * processes write concurrently. Each has its own profiles, processes and cgroups; the first one
 * also owns the profile "default", the experiment and the lease. Each worker computes the expected
 * answer to each write and the expected contents of its files (model.h). All workers touch memory.
 *
 * A round ends after some writes: all workers wait, and the supervisor compares all files with the
 * models. Then it resets the module, lets a lease expire (all writes then fail), reloads the module
 * with random parameters, or does nothing. Every third round is chaos: workers write to the files
 * of all workers, while the supervisor resets, expires and unloads. A reset must then restore the
 * state after load. Equal seeds give equal writes.
 *
 * Prints one JSON object. Exits with status 1 at a deviation.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "model.h"

#define WORKERS		8	/* largest number of workers */
#define PER_ROUND	400	/* writes per worker */
#define ROOM		8192	/* bytes of the longest text */
#define CGROUPS_ROOT	"/sys/fs/cgroup/fuzz"

static struct {
	pthread_barrier_t barrier;
	atomic_ulong writes, refused, chaotic;
	atomic_int busy;	/* workers that still write in this round */
	bool latched, chaos, over;
	struct model model[WORKERS];
} *all;

static unsigned long resets, expiries, loads;
static int workers;
static uint64_t seed, rng;
static const char *module;
static char *pristine;		/* contents of all files after load */

static unsigned int below(unsigned int n)
{
	return next_random(&rng, n);
}

__attribute__((format(printf, 1, 2), noreturn))
static void wrong(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "seed %lu, write %lu: ", seed, all->writes);
	vfprintf(stderr, format, args);
	exit(1);
}

/* ---- Texts */

__attribute__((format(printf, 2, 3)))
static void say(struct text *t, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	t->len = vsnprintf(t->s, ROOM, format, args);
	va_end(args);
}

/* Mutates a text as programs do by mistake, or on purpose. Nearly half stay unchanged. */
static void spoil(struct text *t)
{
	static const char odd[] = " \n\t-+0x9azAZ_[]/.%\x80\xff";
	size_t times;

	switch (below(16)) {
	case 0 ... 3:
		t->s[t->len++] = '\n';
		break;
	case 4:
		memmove(t->s + 1, t->s, t->len++);
		t->s[0] = odd[below(sizeof(odd) - 1)];
		break;
	case 5:
		t->s[t->len++] = odd[below(sizeof(odd) - 1)];
		break;
	case 6:
		t->s[t->len++] = '\0';
		t->s[t->len++] = odd[below(sizeof(odd))];
		break;
	case 7:
		t->len = below(t->len + 1);
		break;
	case 8:
		for (t->len = below(80), times = 0; times < t->len; times++)
			t->s[times] = below(4) ? odd[below(sizeof(odd))] : (char)below(256);
		break;
	case 9:
		for (times = below(2) ? 5000 : 70; t->len && t->len < times; t->len++)
			t->s[t->len] = t->s[0];
		break;
	}
	t->s[t->len] = '\0';
}

static void say_number(struct text *t, uint64_t min, uint64_t max, uint64_t usual)
{
	switch (below(8)) {
	case 0:
		return say(t, "%lu", min - below(2));
	case 1:
		return say(t, "%lu", max + below(2));
	case 2:
		return say(t, "%lu", usual);
	case 3:
		return say(t, "%lu%0*d", max, below(30), 0);
	case 4:
		return say(t, "-%lu", usual);
	default:
		say(t, "%lu", min + (max - min < UINT_MAX ? below(max - min + 1) : rng));
	}
}

static void say_word(struct text *t, const struct file *file)
{
	say(t, "%s", file->word[below(file->nr_words)]);
}

/* ---- Writes */

struct put {
	char path[256];
	char room[ROOM];
	struct text text;
};

static struct put put = { .text.s = put.room };

/* Returns true if @err is possible in a round of chaos, in which no worker knows the state. */
static bool may_be(int err)
{
	static const int errors[] = {
		0, EBUSY, EEXIST, EINVAL, ENODEV, ENOENT, ENOSPC, EOPNOTSUPP, ERANGE, ESRCH,
	};

	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
		if (err == errors[i])
			return true;
	return false;
}

static void quote(const struct text *t)
{
	for (size_t i = 0; i < t->len && i < 100; i++)
		fprintf(stderr, isprint(t->s[i]) ? "%c" : "\\x%02x", (unsigned char)t->s[i]);
	fprintf(stderr, " (%zu bytes) ", t->len);
}

/*
 * Writes put.text to put.path, and compares the errno with @expected. Without chaos, skips writes
 * whose answer the model does not know (NONE).
 */
static void write_it(int expected)
{
	int err;

	if (expected == NONE && !all->chaos)
		return;
	err = tree_put(put.path, put.text.s, put.text.len);
	all->writes++;
	all->refused += err != 0;
	if (all->chaos ? may_be(err) : err == expected)
		return;
	quote(&put.text);
	wrong("-> %s: \"%s\", not \"%s\"\n", put.path, strerror(err), strerror(expected));
}

/* Writes as write_it() does, also an empty text: writing 0 bytes succeeds if the file exists. */
#define CHECKED(exists, answer) \
	write_it(all->chaos ? NONE : put.text.len ? (answer) : (exists) ? 0 : ENOENT)

static void file_path(const struct model *m, int profile, const char *file)
{
	snprintf(put.path, sizeof(put.path), PROFILES "/%s/%.79s", name_of(m, profile), file);
}

/* Returns a random profile of the worker, in most cases one that exists. */
static int some_profile(const struct model *m)
{
	int profile = below(NAMES);

	for (int tries = 0; tries < 8 && !m->profile[profile].exists; tries++)
		profile = below(NAMES);
	return profile;
}

static void set_something(struct model *m)
{
	int profile = some_profile(m);
	unsigned int k = below(nr_files);
	const struct file *file = &files[k];

	if (file->nr_words)
		say_word(&put.text, file);
	else
		say_number(&put.text, file->min, file->max, file->def);
	spoil(&put.text);
	file_path(m, profile, file->path);
	CHECKED(m->profile[profile].exists && (!file->host || is_default(m, profile)),
		model_set(m, profile, k, &put.text));
}

static void create_or_delete(struct model *m)
{
	bool create = below(3);

	say(&put.text, "%s", name_of(m, below(NAMES)));
	spoil(&put.text);
	snprintf(put.path, sizeof(put.path), PROFILES "/%s", create ? "create" : "delete");
	CHECKED(true, create ? model_create(m, &put.text) : model_delete(m, &put.text));
}

static uint64_t some_id(struct model *m, int kind)
{
	static const uint64_t ids[] = { 0, 2, MAX_PID + 1, INT_MAX, 1UL << 32, 1UL << 60 };

	return below(4) ? m->object[kind][below(OBJECTS)].id :
			  ids[below(sizeof(ids) / sizeof(*ids))];
}

static void bind_something(struct model *m)
{
	int profile = some_profile(m), kind = below(KINDS);

	say(&put.text, "%s%lu", below(3) ? "" : "-", some_id(m, kind));
	spoil(&put.text);
	file_path(m, profile, kind == PROCESSES ? "pids" : "cgroups");
	CHECKED(m->profile[profile].exists, model_bind(m, profile, kind, &put.text));
}

static void set_experiment(struct model *m)
{
	static const char *const names[] = {
		"control", "treatment", "control", "treatment", "unit", "percent", "seed",
		"cgroup", "time_faults", "enabled", "enabled",
	};
	const char *name = names[below(sizeof(names) / sizeof(*names))];

	if (strstr("control treatment", name))
		say(&put.text, "%s", below(4) ? name_of(m, some_profile(m)) : "none");
	else if (!strcmp(name, "unit"))
		say(&put.text, "%s", below(2) ? "process" : "cgroup");
	else if (!strcmp(name, "cgroup"))
		say(&put.text, "%lu", below(2) ? some_id(m, CGROUPS) : 0);
	else if (!strcmp(name, "percent"))
		say_number(&put.text, 0, 100, 50);
	else
		say_number(&put.text, 0, strcmp(name, "seed") ? 1 : ULONG_MAX, 1);
	spoil(&put.text);
	snprintf(put.path, sizeof(put.path), ROOT "/experiment/%s", name);
	CHECKED(true, model_experiment(m, name, &put.text));
}

static void set_lease(struct model *m)
{
	say_number(&put.text, below(2) ? 0 : 3600000, 86400000, 100);
	spoil(&put.text);
	snprintf(put.path, sizeof(put.path), ROOT "/lease_ms");
	CHECKED(true, model_lease(m, &put.text));
}

/* ---- Other activity */

/* Touches memory, so that the policy of this process is asked. */
static void fault(struct model *m)
{
	size_t pages = 1 + below(128), step = 1 + below(4);
	char *area = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);

	if (area == MAP_FAILED)
		die("mmap");
	for (size_t i = 0; i < pages; i += step)
		area[i * PAGE] = 1;
	if (madvise(area, pages * PAGE, MADV_FREE))
		die("madvise");
	munmap(area, pages * PAGE);
}

/* Forks a child, or kills one. A child inherits its parent's binding; its exit ends the binding. */
static void other_process(struct model *m)
{
	struct object *self = &m->object[PROCESSES][0];
	struct object *child = self + 1 + below(OBJECTS - 1);
	pid_t pid;

	if (child->id) {
		kill(child->id, SIGKILL);
		if (waitpid(child->id, NULL, 0) < 0)
			die("waitpid");
		*child = (struct object){ 0, NONE };
		return;
	}
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	*child = (struct object){ pid, self->profile };
}

static void other_cgroup(struct model *m)
{
	int i = below(OBJECTS);
	struct object *cgroup = &m->object[CGROUPS][i];
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), CGROUPS_ROOT "/%d-%d", m->number, i);
	if (cgroup->id ? rmdir(path) : mkdir(path, 0755) || stat(path, &st))
		die(path);
	*cgroup = (struct object){ cgroup->id ? 0 : st.st_ino, NONE };
}

/* Reads a file whose value the model does not know. Reading must succeed, except in chaos. */
static void read_something(struct model *m)
{
	static const char *const names[] = {
		ROOT "/state", ROOT "/lease_left_ms", "/sys/kernel/debug/mmpolicy/experiment/units",
		"/sys/kernel/debug/mmpolicy/default/anon_order/stats",
	};
	char text[8192];
	int err = tree_get(names[below(sizeof(names) / sizeof(*names))], text, sizeof(text));

	if (err && !all->chaos)
		wrong("read: %s\n", strerror(err));
}

/* ---- Checks */

static void check_line(const struct model *m, const char *path, const char *expected)
{
	char text[4096];
	int err = tree_get(path, text, sizeof(text));

	if (err || strcmp(text, expected))
		wrong("%s: \"%s\" (%s), not \"%s\"\n", path, text, strerror(err), expected);
}

static void check_number(const struct model *m, const char *path, uint64_t value)
{
	char text[32];

	snprintf(text, sizeof(text), "%lu", value);
	check_line(m, path, text);
}

static void check_file(const struct model *m, int profile, unsigned int k)
{
	const struct file *file = &files[k];
	uint64_t value = m->profile[profile].value[k];
	char text[256] = "";
	size_t n = 0;

	file_path(m, profile, file->path);
	if (!file->nr_words)
		return check_number(m, put.path, value);
	for (unsigned int i = 0; i < file->nr_words; i++)
		n += sprintf(text + n, i == value ? "%s[%s]" : "%s%s", n ? " " : "", file->word[i]);
	check_line(m, put.path, text);
}

/* Checks that "pids" or "cgroups" of a profile lists the expected bindings, in any order. */
static void check_bound(const struct model *m, int profile, int kind)
{
	int expected = 0, found = 0;
	char text[4096];
	int err;

	file_path(m, profile, kind == PROCESSES ? "pids" : "cgroups");
	err = tree_get(put.path, text, sizeof(text));
	for (int i = 0; i < OBJECTS; i++)
		expected += m->object[kind][i].profile == profile;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		const struct object *o = object_of((struct model *)m, kind, strtoull(line, NULL, 10));

		if (!o || o->profile != profile)
			wrong("%s has %s\n", put.path, line);
		found++;
	}
	if (err || found != expected)
		wrong("%s has %d, not %d (%s)\n", put.path, found, expected, strerror(err));
}

static void check_profile(const struct model *m, int i)
{
	file_path(m, i, "");
	if (m->profile[i].exists != !access(put.path, F_OK))
		wrong("%s exists and should not, or the reverse\n", put.path);
	if (!m->profile[i].exists)
		return;
	for (unsigned int k = 0; k < nr_files; k++)
		if (!files[k].host || is_default(m, i))
			check_file(m, i, k);
	for (int kind = 0; kind < KINDS; kind++)
		check_bound(m, i, kind);
}

static void check_experiment(const struct model *m)
{
	const struct experiment *e = &m->experiment;

	check_line(m, ROOT "/experiment/control", name_of(m, e->arm[0]));
	check_line(m, ROOT "/experiment/treatment", name_of(m, e->arm[1]));
	check_line(m, ROOT "/experiment/unit", e->by_cgroup ? "process [cgroup]" : "[process] cgroup");
	check_number(m, ROOT "/experiment/percent", e->percent);
	check_number(m, ROOT "/experiment/seed", e->seed);
	check_number(m, ROOT "/experiment/cgroup", e->cgroup);
	check_number(m, ROOT "/experiment/time_faults", e->time_faults);
	check_number(m, ROOT "/experiment/enabled", e->enabled);
	check_number(m, ROOT "/lease_ms", m->lease_ms);
}

static void check_model(const struct model *m)
{
	for (int i = 0; i < NAMES; i++)
		check_profile(m, i);
	if (!m->number)
		check_experiment(m);
}

static void check_all(void)
{
	bool active = false;

	for (int i = 0; i < workers; i++) {
		check_model(&all->model[i]);
		active |= model_active(&all->model[i]);
	}
	check_line(NULL, ROOT "/state", all->latched ? "expired" : active ? "active" : "stock");
}

/* ---- The workers */

static void (*const often[])(struct model *m) = {
	set_something, set_something, set_something, set_something, set_something,
	set_something, set_something, set_something, bind_something, bind_something,
	bind_something, set_experiment, set_experiment, set_lease, fault, read_something,
};

static void (*const seldom[])(struct model *m) = {
	create_or_delete, create_or_delete, other_process, other_cgroup,
};

static bool is_for(const struct model *m, void (*act)(struct model *m))
{
	return !m->number || all->chaos || (act != set_experiment && act != set_lease);
}

static void act(struct model *mine)
{
	void (*act)(struct model *m) = below(8) ? often[below(16)] : seldom[below(4)];

	/*
	 * In chaos, a worker also writes to the files of the others; its processes and cgroups stay
	 * its own.
	 */
	if (all->chaos && act != other_process && act != other_cgroup)
		mine = &all->model[below(workers)];
	if (is_for(mine, act))
		act(mine);
	pause_cpu();
}

static void leave(const struct model *mine)
{
	char path[64];

	for (int i = 0; i < OBJECTS; i++) {
		snprintf(path, sizeof(path), CGROUPS_ROOT "/%d-%d", mine->number, i);
		if (mine->object[CGROUPS][i].id && rmdir(path))
			die(path);
	}
	_exit(0);
}

static void work(struct model *mine)
{
	unsigned long round = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGCHLD, SIG_DFL);
	mine->object[PROCESSES][0].id = getpid();
	for (;;) {
		pthread_barrier_wait(&all->barrier);
		if (all->over)
			leave(mine);
		rng = SEED ^ (seed * WORKERS + mine->number) * 0x9e3779b97f4a7c15 ^ ++round << 40;
		for (int i = 0; i < PER_ROUND; i++) {
			(i < NAMES ? create_or_delete : act)(mine);
			if (!all->chaos && !below(128))
				check_model(mine);
		}
		all->busy--;
		pthread_barrier_wait(&all->barrier);
	}
}

static void start(int number)
{
	struct model *m = &all->model[number];

	m->number = number;
	model_clear(m);
	switch (fork()) {
	case -1:
		die("fork");
	case 0:
		work(m);
	}
}

/* ---- Their supervisor */

static void on_child(int unused)
{
	int status;

	if (waitpid(-1, &status, WNOHANG) > 0 && status)
		_exit(1);
}

static void must(int err, const char *what)
{
	if (err)
		wrong("%s: %s\n", what, strerror(err));
}

static void clear_models(void)
{
	all->latched = false;
	for (int i = 0; i < workers; i++)
		model_clear(&all->model[i]);
}

static void reset(void)
{
	must(tree_put(ROOT "/reset", "1", 1), "reset");
	resets++;
	clear_models();
}

static void await_state(const char *state)
{
	char text[64];

	do {
		usleep(10000);
		must(tree_get(ROOT "/state", text, sizeof(text)), "state");
	} while (strcmp(text, state));
}

static void expire(void)
{
	must(tree_put(ROOT "/lease_ms", "100", 3), "lease_ms");
	await_state("expired");
	expiries++;
	clear_models();
	all->latched = true;
}

/* Unloads the module, and loads it with module parameters that set policies of some points. */
static void load_again(void)
{
	char params[512] = "";
	struct profile *p = &all->model[0].profile[0];
	size_t n = 0;

	must(module_unload(), "unload");
	clear_models();
	for (unsigned int i = 0; i < nr_files; i++) {
		unsigned int word = below(2) ? 0 : below(files[i].nr_words ?: 1);
		const char *end = strstr(files[i].path, "/policy");

		if (!word || !end || files[i].lacks[word])
			continue;
		n += sprintf(params + n, "%.*s=%s ", (int)(end - files[i].path), files[i].path,
			     files[i].word[word]);
		p->value[i] = word;
	}
	must(module_load(module, params), params);
	loads++;
}

static void as_after_load(void)
{
	char *now;

	module_load(module, "");	/* it may be loaded already */
	reset();
	await_state("stock");	/* an expiry may be in progress */
	now = tree_snapshot();
	if (strcmp(now, pristine))
		wrong("after a reset, the files differ from those after load:\n%s\n", now);
	free(now);
}

/* Lets leases expire, unloads and loads the module, and resets it, while the workers write. */
static void chaos(void)
{
	while (all->busy) {
		usleep(below(100000));
		switch (below(4)) {
		case 0:
			tree_put(ROOT "/lease_ms", "100", 3);
			usleep(below(200000));
			break;
		case 1:
			if (!module_unload())
				loads += !module_load(module, "");
			break;
		default:
			resets += !tree_put(ROOT "/reset", "1", 1);
		}
	}
}

static void one_round(unsigned long round)
{
	unsigned long before = all->writes;

	all->chaos = round % 3 == 1;
	all->busy = workers;
	pthread_barrier_wait(&all->barrier);
	if (all->chaos)
		chaos();
	pthread_barrier_wait(&all->barrier);
	if (all->chaos)
		all->chaotic += all->writes - before;
	else
		check_all();
	if (all->chaos || all->latched)
		as_after_load();
	else if (!below(2))
		(below(2) ? reset : below(2) ? expire : load_again)();
}

static void set_up(void)
{
	pthread_barrierattr_t shared;

	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED || mkdir(CGROUPS_ROOT, 0755))
		die(CGROUPS_ROOT);
	latched = &all->latched;
	must(module_load(module, ""), module);
	model_discover();
	pristine = tree_snapshot();
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&all->barrier, &shared, workers + 1);
	signal(SIGCHLD, on_child);
	for (int i = 0; i < workers; i++)
		start(i);
}

static void tear_down(void)
{
	all->over = true;
	signal(SIGCHLD, SIG_DFL);
	pthread_barrier_wait(&all->barrier);
	for (int i = 0; i < workers; i++)
		wait(NULL);
	must(rmdir(CGROUPS_ROOT) ? errno : 0, CGROUPS_ROOT);
	must(module_unload(), "unload");
}

int main(int argc, char **argv)
{
	unsigned long writes, round = 0;

	if (argc != 5) {
		fprintf(stderr, "usage: fuzz MODULE.ko SEED WRITES WORKERS\n");
		return 2;
	}
	module = argv[1];
	seed = strtoul(argv[2], NULL, 10);
	writes = strtoul(argv[3], NULL, 10);
	workers = atoi(argv[4]);
	rng = SEED ^ seed;
	set_up();
	while (all->writes < writes)
		one_round(round++);
	tear_down();
	printf("{\"seed\": %lu, \"writes\": %lu, \"refused\": %lu, \"chaotic\": %lu, ", seed,
	       all->writes, all->refused, all->chaotic);
	printf("\"rounds\": %lu, \"resets\": %lu, \"expiries\": %lu, \"loads\": %lu}\n", round,
	       resets, expiries, loads);
	return 0;
}
