// SPDX-License-Identifier: GPL-2.0
/*
 * Parses random texts with the module's functions and with the model in meaning.h, and compares
 * the results. (tests/workloads/fuzz.c compares files of the loaded module with this model.) With
 * -DLIBFUZZER, libFuzzer chooses the texts.
 */
#include <errno.h>
#include <stdlib.h>

#include "check.h"
#include "control/text.h"
#include "../workloads/meaning.h"

#define NAME_SIZE	32

static void same_number(const struct text *t, u64 min, u64 max)
{
	u64 value = 0, expected = 0;
	int err = to_number(t->s, t->len, min, max, &expected);

	EXPECT(mmp_parse(t->s, t->len, min, max, &value), ==, -err);
	EXPECT(err || value == expected, ==, true);
}

static void same_binding(const struct text *t)
{
	u64 value = 0, expected = 0;
	bool off, minus = false;
	int err = to_binding(t, &minus, &expected);

	EXPECT(mmp_parse_binding(t->s, t->len, &off, &value), ==, -err);
	EXPECT(err || (value == expected && off == minus), ==, true);
}

static void same_name(const struct text *t)
{
	char *name = malloc(NAME_SIZE), expected[NAME_SIZE];	/* ASan sees an overrun */
	bool right = to_name(t, expected);

	EXPECT(mmp_parse_name(t->s, name, NAME_SIZE), ==, right ? 0 : -EINVAL);
	EXPECT(right && strcmp(name, expected), ==, false);
	free(name);
}

/* Parses a copy of the text from malloc(), so that ASan reports reads behind its end. */
static void same(const char *s, size_t len)
{
	struct text t = { .s = malloc(len + 1), .len = len };

	memcpy(t.s, s, len);
	t.s[len] = '\0';	/* as kernfs does */
	same_number(&t, 0, ULONG_MAX);
	same_number(&t, 1, 100);
	same_binding(&t);
	same_name(&t);
	free(t.s);
}

#ifdef LIBFUZZER
void test_failed(const char *file, int line, const char *what, double a, double b)
{
	abort();
}

void test_add(const char *name, void (*run)(void))
{
}

void at(const char *fmt, ...)
{
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size)		/* a write of zero bytes reaches no handler */
		same((const char *)data, size);
	return 0;
}
#endif

TEST(texts_mean_what_the_document_says)
{
	static const char letters[] = "\n\n0123456789--+ 0x_azAZ.none\0createmeasure";
	u64 rng = SEED;
	char s[80];

	for (int i = 0; i < 500000; i++) {
		size_t len = 1 + next_random(&rng, next_random(&rng, 8) ? 8 : sizeof(s) - 1);
		size_t range = next_random(&rng, 2) ? 12 : sizeof(letters);

		for (size_t k = 0; k < len; k++)
			s[k] = letters[next_random(&rng, range)];
		same(s, len);
	}
}

TEST(some_texts_are_names_and_numbers)
{
	static const char *const texts[] = {
		"none", "create", "delete", "experiment", "measure", "measure\n", "a\n\n", "-5",
		"a234567890123456789012345678901", "a2345678901234567890123456789012", "+5\n",
		"18446744073709551615", "18446744073709551616", "-9223372036854775809", "100\n",
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		at("%s", texts[i]);
		same(texts[i], strlen(texts[i]));
	}
}
