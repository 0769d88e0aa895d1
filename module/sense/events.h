/* SPDX-License-Identifier: GPL-2.0 */
/* Attaches probes to tracepoints of the kernel. */
#ifndef MMPOLICY_EVENTS_H
#define MMPOLICY_EVENTS_H

struct tracepoint;

/**
 * struct mmp_event - a tracepoint and its probe
 * @name: name of the tracepoint; %NULL ends an array
 * @probe: function of the tracepoint's type; its first argument is not used
 * @tp: the tracepoint, once found
 * @on: true while @probe is attached
 */
struct mmp_event {
	const char *name;
	void *probe;
	struct tracepoint *tp;
	bool on;
};

int mmp_listen(struct mmp_event *events);
void mmp_ignore(struct mmp_event *events);

#endif /* MMPOLICY_EVENTS_H */
