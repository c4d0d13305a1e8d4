/* Persistent shells, as shell.c (the session) and shell_run.c (one script in it) see them. */
#ifndef DUTYFREE_SHELL_H
#define DUTYFREE_SHELL_H

#include "core.h"

struct run;

struct shell {
    struct channel channel; /* first */
    struct process process;
    struct source status; /* what the shell says: "SERIAL CODE" lines */
    int command_fd;       /* one-line commands to it */
    int script_fd, input_fd, input_offset_fd;
    int out_fd, err_fd;
    size_t script_size, input_size;
    uint32_t serial; /* of the newest question for a status */
    bool is_bash, opened, cancelled, ended;
    char line[64]; /* the beginning of a status line */
    size_t line_size;
    uint64_t cpu_ns; /* at the end of the previous run */
    struct run *run;
    struct timer leftovers;
    uint64_t leftovers_until_ns;
};

/* Asks for the status of what ran before; the answer carries shell->serial. */
void shell_ask(struct shell *shell);
void shell_tell(struct shell *shell, const char *text, size_t size);
/* CPU time of the shell and its reaped children. */
uint64_t shell_cpu_ns(const struct shell *shell);
void shell_kill(struct shell *shell);
/* Its last run is over and the shell is gone: ends the channel. */
void shell_close_if_over(struct shell *shell);

/* ---- shell_run.c ---- */
void run_status(struct run *run, uint32_t code);
void run_shell_ended(struct run *run);
void run_cancel(struct run *run);
void run_shell_cancelled(struct run *run);
void run_signal(struct shell *shell, const uint8_t *data, size_t size);
void run_abandon(struct run *run);
void request_run_in(struct shell *shell, uint32_t id, struct reader *reader);

#endif
