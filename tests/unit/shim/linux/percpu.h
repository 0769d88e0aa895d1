/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_PERCPU_H
#define SHIM_PERCPU_H

#define this_cpu_add(var, n)	((var) += (n))

#endif /* SHIM_PERCPU_H */
