// SPDX-License-Identifier: GPL-2.0
/* Attaches probes to tracepoints of the kernel. */
#include <linux/string.h>
#include <linux/tracepoint.h>

#include "events.h"

/*
 * Called for each tracepoint of the kernel: stores those that @events names.
 * The kernel exports no symbols of them.
 */
static void event_note(struct tracepoint *tp, void *events)
{
	struct mmp_event *event;

	for (event = events; event->name; event++)
		if (!strcmp(event->name, tp->name))
			event->tp = tp;
}

static int event_attach(struct mmp_event *event)
{
	int err = -EOPNOTSUPP;

	if (event->tp)
		err = tracepoint_probe_register(event->tp, event->probe, NULL);
	event->on = !err;
	return err;
}

/**
 * mmp_listen - attach probes to tracepoints, unless they are attached
 * @events: array of tracepoints; either all or none are attached
 *
 * Context: may sleep; the caller serialises calls with one array.
 * Return: 0; -EOPNOTSUPP if the kernel lacks a tracepoint; -ENOMEM.
 */
int mmp_listen(struct mmp_event *events)
{
	struct mmp_event *event;
	int err = 0;

	if (events->on)
		return 0;
	for_each_kernel_tracepoint(event_note, events);
	for (event = events; event->name && !err; event++)
		err = event_attach(event);
	if (err)
		mmp_ignore(events);
	return err;
}

/**
 * mmp_ignore - detach probes from tracepoints
 * @events: as for mmp_listen()
 *
 * A probe may still run; tracepoint_synchronize_unregister() waits for it.
 * Context: as for mmp_listen().
 */
void mmp_ignore(struct mmp_event *events)
{
	for (; events->name; events++) {
		if (events->on)
			tracepoint_probe_unregister(events->tp, events->probe,
						    NULL);
		events->on = false;
	}
}
