/* One running command, as exec.c and plumbing.c see it. */
#ifndef DUTYFREE_COMMAND_H
#define DUTYFREE_COMMAND_H

#include <stdio.h>

#include "core.h"

struct exec_request {
    uint32_t options;
    uint16_t rows, columns;
    uint64_t deadline_ns, output_limit, window;
    char *cwd, *user, **argv, **env;
    struct slice input;
};

struct command {
    struct channel channel; /* first */
    struct process process;
    struct capture capture;
    struct input input;
    uint32_t options;
    uint8_t ending; /* WIRE_ENDED_EXIT until we decide otherwise */
    bool leader_ended, output_done, leftovers;
    uint64_t start_ns, run_ns, leftovers_until_ns, oom_kills_before;
    struct timer deadline, leftovers_timer;
};

struct command *process_command(struct process *process);

/* ---- plumbing.c: the descriptors between us and a command ---- */
/* Makes pipes or a terminal. NULL, or what failed, with errno. */
const char *plumbing_open(struct command *command, struct spawn *spawn, const struct exec_request *request);
/* The child has its copies: closes ours. */
void plumbing_started(struct spawn *spawn);
/* Hands over the request's stdin; only once there is somebody to take it. */
void plumbing_feed(struct command *command, const struct exec_request *request);

#endif
