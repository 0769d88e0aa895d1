/* SPDX-License-Identifier: GPL-2.0 */
/* Tracepoints without effect. */
#define TP_PROTO(...)	__VA_ARGS__
#define TRACE_EVENT(name, proto, ...)						\
	static inline void trace_##name(proto) {}				\
	static inline int trace_##name##_enabled(void) { return 0; }
