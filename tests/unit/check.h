/* SPDX-License-Identifier: GPL-2.0 */
/* A minimal test framework: TEST(name) { ... EXPECT(a, <=, b); ... } */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>

/*
 * Sets the position within a test, such as the row of its table, for the
 * message of a failure.
 */
void at(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

void test_add(const char *name, void (*run)(void));
void test_failed(const char *file, int line, const char *what, double a, double b);

#define TEST(name)							\
	static void name(void);						\
	__attribute__((constructor)) static void add_##name(void)	\
	{								\
		test_add(#name, name);					\
	}								\
	static void name(void)

/* Fails the test unless @op is true for two numbers of any type, below 2^53. */
#define EXPECT(a, op, b) do {						\
	const double expect_a = (a);					\
	const double expect_b = (b);					\
	if (!(expect_a op expect_b))					\
		test_failed(__FILE__, __LINE__, #a " " #op " " #b,	\
			    expect_a, expect_b);			\
} while (0)

#endif /* CHECK_H */
