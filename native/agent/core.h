/* What the agent's own core files share, beyond agent.h. */
#ifndef DUTYFREE_CORE_H
#define DUTYFREE_CORE_H

#include <sys/resource.h>

#include "agent.h"

#define MILLISECOND_NS 1000000ull

/* ---- loop.c ---- */
void loop_open(void);
_Noreturn void loop_run(void);

/* ---- stream.c ---- */
void stream_prepare(void);
void stream_open(int in_fd, int out_fd, uint64_t features);
/* Writes what the peer takes now; never blocks. */
void stream_flush(void);
/* send_commit without asking for a flush: the bytes leave with the next frame, or when 64 KiB are there. */
void stream_hold(uint32_t channel, uint8_t type, uint8_t flags, size_t size);
void stream_flush_soon(void);
/* Once per turn of the loop, before it sleeps. True: there is more to do, do not sleep. */
bool stream_turn(void);

/* ---- request.c: which frame goes where ---- */
void frame_arrived(uint32_t id, uint8_t type, uint8_t flags, const uint8_t *data, size_t size);

/* ---- channel.c ---- */
enum { CHANNEL_LIMIT = 4096 };
size_t channel_count(void);
/* CONFIG has changed idle_ns, or a channel has come or gone. */
void channel_idle_changed(void);

/* ---- process.c: the processes we started, and reaping everybody ---- */
struct process {
    pid_t pid; /* 0: none */
    uint64_t mark;
    /* Reaped. `alone`: no other process of this sandbox is left, so there is nothing to look for. */
    void (*ended)(struct process *process, int status, const struct rusage *usage, bool alone);
    int status;
    struct rusage usage;
    struct process *next, *next_ended;
};

void process_open(void);
/* Says on this eventfd when processes run. */
void process_tell(int busy_fd);
void process_add(struct process *process);
/* Forgets it without waiting (it will be reaped as a stranger). */
void process_remove(struct process *process);
struct process *process_find(pid_t pid);
size_t process_count(void);
/* True if a child of ours may be left over from the ended command with this mark and leader. */
bool process_strays(uint64_t mark, pid_t leader);
/* A command in the background has ended, and what it started lives on. */
void process_leave_rest(void);
/* True if whatever runs now belongs to `leader`, or to nobody: it may all be killed. */
bool process_only(pid_t leader);

/* ---- tree.c ---- */
void tree_open(void);
/* All processes of our pid namespace are below us: they can be signalled at once, which no fork escapes. */
void tree_whole(void);
bool tree_is_whole(void);
/* The number of the newest process: where it has not changed, a look has missed nobody. */
long tree_newest(void);
/* The mark of the next command; later ones are lower, so a process can only lower its own to one not yet given out. */
uint64_t tree_next_mark(void);
uint64_t tree_mark_of(pid_t pid);
bool tree_is_issued(uint64_t mark);
bool tree_marks_work(void);
/* Kills every process that belongs to the mark or its leader, but not `spare` (0: nobody). */
void tree_kill(uint64_t mark, pid_t leader, pid_t spare);
/* After an interrupt of the leader's process group: sends it to those that would have died of it, so cannot have had
 * it, but not to the leader. True while any is left that does not ignore it. */
bool tree_interrupt(uint64_t mark, pid_t leader);
/* True while any of them but `spare` still runs (zombies do not). */
bool tree_alive(uint64_t mark, pid_t leader, pid_t spare);
/* Everything below us; returns when it is gone. */
void tree_kill_all(void);

/* ---- user.c ---- */
enum { GROUP_LIMIT = 64 };
int user_groups(const struct identity *who, gid_t *groups);
void user_forget(void); /* CONFIG has changed the default */

/* ---- env.c ---- */
/* The environment of a command, in one allocation that the caller frees; the strings of `extra` are not copied. */
char **env_build(const struct identity *who, bool terminal, char **extra);
const char *env_get(char **env, const char *name);

/* ---- spawn.c ---- */
enum { SPAWN_HIGH_FD = 5, SPAWN_HIGH_COUNT = 5 };
enum spawn_step { SPAWN_OK, SPAWN_CWD, SPAWN_USER, SPAWN_TERMINAL, SPAWN_EXEC, SPAWN_CLONE };

struct spawn {
    char **argv, **env;
    const char *cwd;
    bool cwd_optional; /* fall back to / */
    const struct identity *who;
    int fds[3];      /* for 0, 1, 2; -1: /dev/null */
    int terminal;    /* becomes the controlling terminal; -1: none */
    const int *high; /* SPAWN_HIGH_COUNT descriptors (all >= 16) that become 5, 6, … ; or NULL */
    uint64_t mark;
    enum spawn_step failed; /* out */
    int errnum;             /* out */
};

/* `files`: descriptors of each process; 0: ours. */
void spawn_open(int score_fd, unsigned files);
/* The pid, or -1 with `failed` and `errnum`. */
pid_t agent_spawn(struct spawn *spawn);
/* bash where there is one, else sh. */
const char *shell_path(bool *is_bash);
/* cwd of a request: its own, else CONFIG's, else home. */
void spawn_cwd(struct spawn *spawn, const char *asked);

/* ---- output.c ---- */
struct output {
    struct source source;
    struct capture *capture;
    uint8_t type;
    bool terminal, blocked, empty, full_size;
    bool unheld;             /* at the last look nobody had it open to write */
    uint64_t total, drained; /* drained: bytes read since the end of the command */
    uint8_t *tail;
    uint64_t tail_total;
    size_t tail_sent;
};

/* The two output streams of one command or shell run. */
struct capture {
    struct channel *channel;
    struct output out, err; /* err.source.fd is -1 when merged */
    uint64_t limit;
    size_t tail_size;
    bool stream, ended, fatal, over_called;
    struct timer late;
    void (*over)(struct capture *capture);    /* the limit was passed and that is fatal */
    void (*drained)(struct capture *capture); /* after capture_end could not finish at once, it now could */
};

void capture_open(struct capture *capture, struct channel *channel, uint32_t options, uint64_t limit);
/* Puts a readable, non-blocking end in place. */
void capture_attach(struct output *output, int fd, bool terminal);
/* Begins to read: at once when streaming, else a moment later, so that a short command causes no wake-up. */
void capture_watch(struct capture *capture);
void capture_pull(struct capture *capture);
/* The command is over: true if all it wrote has been queued, else `drained` is called later. */
bool capture_end(struct capture *capture);
uint64_t capture_omitted(const struct capture *capture);
uint64_t capture_stderr_omitted(const struct capture *capture);
/* Closes; with `keep_draining`, readers go on discarding so that survivors do not die of SIGPIPE. */
void capture_close(struct capture *capture, bool keep_draining);

/* ---- input.c ---- */
struct input {
    struct source source;
    uint32_t channel;
    uint8_t *data;
    size_t size, at, capacity;
    int64_t credit;
    size_t taken; /* written and not yet granted back */
    bool terminal, streamed, ended;
    uint8_t last;
};

void input_open(struct input *input, uint32_t channel, int fd, bool terminal, bool streamed);
void input_add(struct input *input, const uint8_t *data, size_t size, bool last);
void input_close(struct input *input);

/* ---- exit.c: how a command ended ---- */
struct exit_report {
    uint8_t ending, flags;
    uint32_t code;
    uint64_t run_ns, cpu_ns, max_rss_bytes, omitted_bytes, stderr_omitted_bytes;
    uint64_t oom_kills_before; /* exit_oom_kills() when it began */
};
/* Sends EXIT; a kill that the memory limit explains becomes an out-of-memory ending. */
void exit_send(uint32_t channel, const struct exit_report *report);
void exit_open(int oom_fd);
/* Processes of the sandbox that the memory limit has killed so far. */
uint64_t exit_oom_kills(void);
/* Kills every process of the sandbox but us, as one that ran out of memory. */
void exit_purge(void);
uint64_t exit_cpu_ns(const struct rusage *usage);

/* ---- serve.c ---- */
_Noreturn void agent_end(void);
bool agent_is_init(void);

#endif
