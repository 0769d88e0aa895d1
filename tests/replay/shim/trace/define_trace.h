/* SPDX-License-Identifier: GPL-2.0 */
/* Nothing is defined: see linux/tracepoint.h. */
