/* SPDX-License-Identifier: GPL-2.0 */
/* Replays recorded first touches of programs. */
#ifndef REPLAY_H
#define REPLAY_H

#include "sim.h"

/* Replays the events of a recording. bench/recordings.py describes its lines. */
void replay(struct sim *sim, const char *recording);

/* Returns the contents of a file as a string, which the caller frees. Aborts on errors. */
char *read_text(const char *path);

#endif /* REPLAY_H */
