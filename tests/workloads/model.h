/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The contents of the module's files, and their answers to writes, by docs/sysfs-abi.txt: an
 * independent implementation that shares nothing with the module.
 */
#ifndef MODEL_H
#define MODEL_H

#include <sys/types.h>

#include "meaning.h"
#include "tree.h"

#define FILES		80	/* most files of a profile */
#define WORDS		8	/* most words of a choice */
#define NAMES		4	/* most profiles of a worker */
#define OBJECTS		4	/* cgroups and processes of a worker, each */
#define LONGEST		64	/* bytes of the longest text that is accepted */
#define NONE		(-1)
#define MAX_PID		4194304
#define PROFILES	ROOT "/profiles"

/* A file of a profile: a choice of words, or a number. */
struct file {
	char path[80];		/* below the folder of the profile */
	unsigned int nr_words;	/* 0: a number */
	char word[WORDS][24];
	bool lacks[WORDS];	/* unavailable on this kernel */
	uint64_t min, max, def;
	bool host;		/* only in the profile "default" */
};

static struct file files[FILES];
static unsigned int nr_files;

struct profile {
	bool exists;
	uint64_t value[FILES];
};

struct object {
	uint64_t id;		/* PID or cgroup id; 0: none */
	int profile;		/* index of the profile that it is bound to, or NONE */
};

enum { PROCESSES, CGROUPS, KINDS };	/* object[PROCESSES][0] is the worker itself */

struct experiment {
	int arm[2];
	bool by_cgroup, enabled;
	uint64_t percent, seed, cgroup, time_faults;
};

/*
 * The expected state of all that one worker owns. The first worker also owns the profile "default",
 * the experiment and the lease.
 */
struct model {
	int number;
	struct profile profile[NAMES];
	struct object object[KINDS][OBJECTS];
	struct experiment experiment;
	uint64_t lease_ms;
};

static bool *latched;		/* true after the lease has expired; shared by all processes */

/* ---- Discovery */

static inline struct file *file_of(const char *path)
{
	for (unsigned int i = 0; i < nr_files; i++)
		if (!strcmp(files[i].path, path))
			return &files[i];
	return NULL;
}

static inline uint64_t bound_of(const char *path, const char *which)
{
	char name[256], text[64];

	snprintf(name, sizeof(name), ROOT "/knobs/%s/%s", path, which);
	if (tree_get(name, text, sizeof(text)))
		die(name);
	return strtoull(text, NULL, 10);
}

static inline bool is_available(const char *folder, const char *point, const char *policy)
{
	char path[256], text[256];

	snprintf(path, sizeof(path), ROOT "/%s/%s%s%s", folder, point, *policy ? "/" : "", policy);
	return tree_get(path, text, sizeof(text)) == ENOENT || !strcmp(text, "available");
}

static inline void note_words(struct file *file, char *list)
{
	char point[64];

	snprintf(point, sizeof(point), "%.*s", (int)strcspn(file->path, "/"), file->path);
	for (char *word = strtok(list, " "); word; word = strtok(NULL, " ")) {
		unsigned int i = file->nr_words++;

		if (*word == '[') {
			file->def = i;
			word[strlen(word) - 1] = '\0';
			word++;
		}
		snprintf(file->word[i], sizeof(file->word[i]), "%s", word);
		file->lacks[i] = i && !(is_available("points", point, "") &&
					is_available("policies", point, word));
	}
}

/* Records a file of the profile "default" after load: its words, or its bounds and default. */
static inline int note_file(const char *path, const struct stat *st, int type, struct FTW *at)
{
	struct file *file = &files[nr_files];
	char text[4096];

	if (type != FTW_F || at->level == 1)	/* pids and cgroups */
		return 0;
	snprintf(file->path, sizeof(file->path), "%s", path + strlen(PROFILES "/default/"));
	if (tree_get(path, text, sizeof(text)) || nr_files++ == FILES)
		die(path);
	if (isdigit(*text)) {
		file->def = strtoull(text, NULL, 10);
		file->min = bound_of(file->path, "min");
		file->max = bound_of(file->path, "max");
	} else {
		note_words(file, text);
	}
	return 0;
}

/*
 * Records the files of profiles from the tree after load. Creates and deletes a profile "x", to
 * learn which files only "default" has.
 */
static inline void model_discover(void)
{
	char path[256];

	if (nftw(PROFILES "/default", note_file, 16, FTW_PHYS) || !nr_files)
		die(PROFILES);
	if (tree_put(PROFILES "/create", "x", 1))
		die("create");
	for (unsigned int i = 0; i < nr_files; i++) {
		snprintf(path, sizeof(path), PROFILES "/x/%.79s", files[i].path);
		files[i].host = access(path, F_OK);
	}
	if (tree_put(PROFILES "/delete", "x", 1))
		die("delete");
}

/* ---- Expected state */

static inline bool is_default(const struct model *m, int i)
{
	return !m->number && !i;
}

static inline const char *name_of(const struct model *m, int i)
{
	static char name[2][32];
	static int which;

	if (i == NONE)
		return "none";
	if (is_default(m, i))
		return "default";
	which = !which;
	snprintf(name[which], sizeof(name[which]), "w%d-%d", m->number, i);
	return name[which];
}

static inline int profile_named(const struct model *m, const char *name)
{
	for (int i = 0; i < NAMES; i++)
		if (m->profile[i].exists && !strcmp(name, name_of(m, i)))
			return i;
	return NONE;
}

static inline void profile_default(struct profile *p, bool exists)
{
	p->exists = exists;
	for (unsigned int i = 0; i < nr_files; i++)
		p->value[i] = files[i].def;
}

/* Resets the model to the state after load, without bindings. Processes and cgroups stay. */
static inline void model_clear(struct model *m)
{
	for (int i = 0; i < NAMES; i++)
		profile_default(&m->profile[i], is_default(m, i));
	for (int kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < OBJECTS; i++)
			m->object[kind][i].profile = NONE;
	m->experiment = (struct experiment){ .arm = { NONE, NONE }, .percent = 50 };
	m->lease_ms = 0;
}

static inline bool model_active(const struct model *m)
{
	for (int i = 0; i < NAMES; i++)
		for (unsigned int k = 0; m->profile[i].exists && k < nr_files; k++)
			if (files[k].nr_words && m->profile[i].value[k])
				return true;
	return false;
}

static inline bool is_used(const struct model *m, int profile)
{
	bool used = m->experiment.arm[0] == profile || m->experiment.arm[1] == profile;

	for (int kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < OBJECTS; i++)
			used |= m->object[kind][i].profile == profile;
	return used;
}

static inline int to_word(const struct file *file, const struct text *t, uint64_t *value)
{
	for (unsigned int i = 0; i < file->nr_words && t->len <= LONGEST; i++)
		if (means(t, file->word[i])) {
			*value = i;
			return 0;
		}
	return EINVAL;
}

/* ---- Writes: return the expected errno; change the model if that is 0 */

static inline int model_set(struct model *m, int profile, unsigned int k, const struct text *t)
{
	const struct file *file = &files[k];
	uint64_t value;
	int err;

	if (!m->profile[profile].exists || (file->host && !is_default(m, profile)))
		return ENOENT;
	err = file->nr_words ? to_word(file, t, &value) :
	      to_number(t->s, t->len, file->min, file->max, &value);
	if (err)
		return err;
	if (*latched)
		return EBUSY;
	if (file->nr_words && file->lacks[value])
		return EOPNOTSUPP;
	m->profile[profile].value[k] = value;
	return 0;
}

static inline int model_create(struct model *m, const struct text *t)
{
	char name[32];

	if (!to_name(t, name))
		return EINVAL;
	if (*latched)
		return EBUSY;
	if (!strcmp(name, "default") || profile_named(m, name) != NONE)
		return EEXIST;
	for (int i = 0; i < NAMES; i++)
		if (!strcmp(name, name_of(m, i))) {
			profile_default(&m->profile[i], true);
			return 0;
		}
	return NONE;	/* a valid name of another worker */
}

static inline int model_delete(struct model *m, const struct text *t)
{
	if (*latched)
		return EBUSY;
	if (means(t, "default"))
		return EBUSY;
	for (int i = 0; i < NAMES; i++)
		if (m->profile[i].exists && means(t, name_of(m, i))) {
			if (is_used(m, i))
				return EBUSY;
			m->profile[i].exists = false;
			return 0;
		}
	return ENOENT;
}

static inline struct object *object_of(struct model *m, int kind, uint64_t id)
{
	for (int i = 0; id && i < OBJECTS; i++)
		if (m->object[kind][i].id == id)
			return &m->object[kind][i];
	return NULL;
}

/*
 * Returns the expected errno of binding a PID or cgroup id that belongs to no worker; NONE if
 * binding it may succeed.
 */
static inline int strangers_error(int kind, uint64_t id)
{
	if (kind == PROCESSES)
		return !id || id > MAX_PID ? ESRCH : id == 2 ? EINVAL : NONE;
	return !id || id > 1UL << 48 ? ENOENT : NONE;
}

static inline int model_bind(struct model *m, int profile, int kind, const struct text *t)
{
	struct object *object;
	uint64_t id;
	bool off;
	int err;

	if (!m->profile[profile].exists)
		return ENOENT;
	err = to_binding(t, &off, &id);
	if (err)
		return err;
	if (*latched)
		return EBUSY;
	object = object_of(m, kind, id);
	if (off ? !object || object->profile != profile : !object)
		return off ? ENOENT : strangers_error(kind, id);
	object->profile = off ? NONE : profile;
	return 0;
}

static inline int model_arm(struct model *m, int arm, const struct text *t)
{
	struct experiment *e = &m->experiment;
	int profile = NONE;

	if (*latched || e->enabled)
		return EBUSY;
	if (!means(t, "none") && !means(t, "")) {
		for (int i = 0; i < NAMES; i++)
			if (m->profile[i].exists && means(t, name_of(m, i)))
				profile = i;
		if (profile == NONE)
			return ENOENT;
		if (is_default(m, profile) || profile == e->arm[!arm])
			return EINVAL;
	}
	e->arm[arm] = profile;
	return 0;
}

static inline int model_unit(struct model *m, const struct text *t)
{
	if (!means(t, "process") && !means(t, "cgroup"))
		return EINVAL;
	if (*latched || m->experiment.enabled)
		return EBUSY;
	m->experiment.by_cgroup = means(t, "cgroup");
	return 0;
}

static inline int model_enable(struct model *m, bool on)
{
	struct experiment *e = &m->experiment;

	if (on && !e->enabled && (e->arm[0] == NONE || e->arm[1] == NONE))
		return EINVAL;
	e->enabled = on;
	return 0;
}

static inline int model_set_up(struct model *m, uint64_t *field, uint64_t value)
{
	struct experiment *e = &m->experiment;

	if (e->enabled && field != &e->percent)
		return EBUSY;
	if (field == &e->cgroup && value && !object_of(m, CGROUPS, value))
		return strangers_error(CGROUPS, value);
	*field = value;
	return 0;
}

static inline int model_number(struct model *m, const char *name, const struct text *t)
{
	struct experiment *e = &m->experiment;
	const struct {
		const char *name;
		uint64_t max, *field;
	} numbers[] = {
		{ "percent", 100, &e->percent },	{ "seed", ULONG_MAX, &e->seed },
		{ "cgroup", ULONG_MAX, &e->cgroup },	{ "time_faults", 1, &e->time_faults },
		{ "enabled", 1, NULL },
	};
	uint64_t value;
	size_t i = 0;
	int err;

	while (strcmp(numbers[i].name, name))
		i++;
	err = to_number(t->s, t->len, 0, numbers[i].max, &value);
	if (err)
		return err;
	if (*latched)
		return EBUSY;
	return numbers[i].field ? model_set_up(m, numbers[i].field, value) : model_enable(m, value);
}

static inline int model_experiment(struct model *m, const char *name, const struct text *t)
{
	if (!strcmp(name, "control") || !strcmp(name, "treatment"))
		return model_arm(m, *name == 't', t);
	return !strcmp(name, "unit") ? model_unit(m, t) : model_number(m, name, t);
}

static inline int model_lease(struct model *m, const struct text *t)
{
	uint64_t value;
	int err = to_number(t->s, t->len, 0, 86400000, &value);

	if (err)
		return err;
	if (value && value < 100)
		return ERANGE;
	if (*latched)
		return EBUSY;
	if (value && value < 3600000)
		return NONE;	/* the lease would expire during the test */
	m->lease_ms = value;
	return 0;
}

#endif /* MODEL_H */
