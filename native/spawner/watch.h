/* What watch.c and main.c share: the look at what no limit counts. */
#ifndef DUTYFREE_WATCH_H
#define DUTYFREE_WATCH_H

#include <stdbool.h>

#include "spawner.h"

/* Opens what is looked at; by the host's paths. */
void watch_prepare(void);
/* An agent has processes: it has written to watch_busy_fd. */
void watch_wake(void);
/* Milliseconds to the next look; -1: none, all is quiet. */
int watch_timeout(void);
/* Looks, if it is time, and may end a sandbox. */
void watch_look(void);

/* ---- main.c ---- */

/* The entry of that number, whatever its life is; NULL past the last. */
struct sandbox *live_sandbox(uint32_t number);
void end_sandbox(struct sandbox *sandbox, enum gone_reason reason);

#endif
