/* SPDX-License-Identifier: GPL-2.0 */
/* Tracepoints of the kernel that parts of the module listen to. */
#ifndef MMPOLICY_EVENTS_H
#define MMPOLICY_EVENTS_H

struct tracepoint;

/**
 * struct mmp_event - a tracepoint and who is told
 * @name: of the tracepoint; %NULL ends an array
 * @probe: of its type; the first argument is not used
 * @tp: the tracepoint, once found
 * @on: is @probe attached?
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
