/* SPDX-License-Identifier: GPL-2.0 */
/* Recorded orders in which programs touched their memory, to be replayed. */
#ifndef REPLAY_H
#define REPLAY_H

#include "sim.h"

/* Does what a recording says. See bench/recordings.py for its lines. */
void replay(struct sim *sim, const char *recording);

/* The text of a file of the recordings, or of any other. */
char *read_text(const char *path);

#endif /* REPLAY_H */
