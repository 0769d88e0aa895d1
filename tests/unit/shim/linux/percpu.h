/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_PERCPU_H
#define SHIM_PERCPU_H

#define this_cpu_read(var)	(var)
#define raw_cpu_read(var)	(var)
#define raw_cpu_write(var, n)	((var) = (n))
#define raw_cpu_inc(var)	((var)++)
#define raw_cpu_add(var, n)	((var) += (n))
#define this_cpu_write(var, n)	((var) = (n))
#define this_cpu_inc(var)	((var)++)
#define this_cpu_add(var, n)	((var) += (n))
#define this_cpu_sub(var, n)	((var) -= (n))
#define this_cpu_inc_return(var)	(++(var))

/* The tests have one CPU, so a per-CPU variable is a plain one. */
#define DECLARE_PER_CPU(type, name)	extern typeof(type) name
#define DEFINE_PER_CPU(type, name)	typeof(type) name
#define this_cpu_ptr(pointer)		(pointer)

#endif /* SHIM_PERCPU_H */
