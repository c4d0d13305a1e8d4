/* The guest agent's rooms and what passes between them.
 *
 *   main.c     the program's own start             serve.c       before the first frame, and the end
 *   loop.c     epoll, timers                       stream.c      frames in, frames out
 *   request.c  which frame goes where              reader.c      decoding a request
 *   channel.c  the table of open channels
 *
 *   exec.c     commands: start, deadline, end      spawn.c       vfork and exec
 *   plumbing.c pipes and terminals                 process.c     who runs, reaping
 *   input.c    stdin and its credit                output.c      caps, head and tail
 *   tree.c     finding and killing processes       exit.c        how a command ended
 *   env.c      a command's environment             user.c        names to ids
 *   shell.c    persistent shells                   shell_run.c   one script in one
 *
 *   file.c     read, write, stat, mkdir, rename    list.c, remove.c
 *   path.c     paths in requests                   download.c    what READ, LIST and TAR_OUT share
 *   tar_in.c   a tar stream's parts                tar_decode.c  its headers
 *   unpack.c   what an entry becomes               beneath.c     never outside the target
 *   tar_out.c  a tree as a tar stream              tar_encode.c  its headers
 *   walk.c     a position in a tree
 *   port.c     how relays begin                    relay.c       bytes both ways
 *
 * Headers beside this one: core.h (commands and the core), command.h, shell.h, file.h, path.h, tar.h, unpack.h, walk.h,
 * relay.h: what a few rooms share, and the others need not know.
 *
 * One thread, no locks, nothing blocks on the peer. All descriptors are close-on-exec. The agent trusts nobody inside
 * the sandbox, and survives a host that talks nonsense (it ends the connection). */
#ifndef DUTYFREE_AGENT_H
#define DUTYFREE_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../common/wire.h"

/* ---- loop.c: readiness ---- */

struct source; /* one watched descriptor */
typedef void ready_fn(struct source *source, uint32_t events);

struct source {
    int fd;          /* -1: closed */
    uint32_t events; /* as registered now; 0: not in the epoll set */
    ready_fn *ready;
    void *owner;
};

/* Sets what to watch `source->fd` for (EPOLLIN, EPOLLOUT, 0 for nothing). */
void source_watch(struct source *source, uint32_t events);
/* Unregisters and closes. */
void source_close(struct source *source);

struct timer {
    uint64_t at_ns; /* CLOCK_MONOTONIC; 0: not set */
    void (*fire)(struct timer *timer);
    void *owner;
    struct timer *next;
};

void timer_set(struct timer *timer, uint64_t at_ns);
void timer_clear(struct timer *timer);
uint64_t now_ns(void);

/* ---- channel.c: conversations ---- */

struct channel;

struct channel_ops {
    /* A frame the host sent on this open channel (never the one that opened it). `data` is valid during the call. */
    void (*frame)(struct channel *channel, uint8_t type, uint8_t flags, const uint8_t *data, size_t size);
    /* Credit or room in the queue has come back: produce more, if there is more. May be NULL. */
    void (*pull)(struct channel *channel);
    /* Free everything the channel owns, kill what it runs. Called once, by channel_close. */
    void (*close)(struct channel *channel);
};

struct channel {
    uint32_t id;
    uint64_t window; /* bytes of DATA/STDOUT/STDERR the host still grants us */
    const struct channel_ops *ops;
    struct channel *next_in_bucket, *previous, *next; /* the table's own */
};

/* Registers a channel embedded at the start of a larger struct. The caller has checked that `id` is free. */
void channel_open(struct channel *channel, uint32_t id, const struct channel_ops *ops);
struct channel *channel_find(uint32_t id);
/* Sends nothing; frees through ops->close. The caller has sent the terminal frame. */
void channel_close(struct channel *channel);
/* A fresh number for a channel the agent opens. */
uint32_t channel_fresh_id(void);
/* Calls `visit` on every open channel; it may close the one it is given. */
void channel_each(void (*visit)(struct channel *channel, void *context), void *context);

/* ---- stream.c, request.c: frames out ---- */

/* Queues a frame made of two parts (either may be empty). Never blocks; the queue takes control frames always. */
void send_frame(uint32_t channel, uint8_t type, uint8_t flags, const void *head, size_t head_size, const void *body,
                size_t body_size);
/* Bulk producers ask first: how many payload bytes the queue has room for now (0: wait for pull). */
size_t send_room(void);
/* Space for up to `*room` payload bytes at the queue's end, to read() into, then commit. NULL: no room. */
uint8_t *send_reserve(size_t *room);
void send_commit(uint32_t channel, uint8_t type, uint8_t flags, size_t size);

/* Terminal frames: these send and then channel_close if the channel is open. */
void end_ok(uint32_t channel, const void *payload, size_t size);
void end_error(uint32_t channel, int errnum, const char *what, const char *detail);
/* The host broke the protocol: says so on channel 0 and ends the agent. */
_Noreturn void protocol_error(const char *what);

/* ---- reader.c: decoding a request ---- */

struct reader {
    const uint8_t *at, *end;
    bool bad; /* something ran past the end; all later values are 0 or empty */
};

struct slice {
    const uint8_t *data;
    size_t size;
};

struct reader reader_of(const uint8_t *data, size_t size);
uint16_t take_u16(struct reader *reader);
uint32_t take_u32(struct reader *reader);
uint64_t take_u64(struct reader *reader);
struct slice take_bytes(struct reader *reader);
/* A NUL-terminated copy; NULL and `bad` if it holds a NUL or is longer than `max`. The caller frees. */
char *take_string(struct reader *reader, size_t max);
/* A NULL-terminated array of strings in one allocation; `bad` likewise. The caller frees the one pointer. */
char **take_list(struct reader *reader, size_t max_items);
/* True if everything was read and nothing was bad. */
bool reader_done(const struct reader *reader);

/* ---- what a request does: each opens its channel or ends it ---- */

typedef void request_fn(uint32_t id, uint8_t flags, const uint8_t *data, size_t size);
request_fn request_exec, request_shell, request_shell_run;                           /* exec.c, shell.c */
request_fn request_read, request_write, request_stat, request_mkdir, request_rename; /* file.c */
request_fn request_list, request_remove;                                             /* list.c, remove.c */
request_fn request_tar_in, request_tar_out;                                          /* tar_in.c, tar_out.c */
request_fn request_listen, request_connect;                                          /* port.c */

/* ---- the agent itself ---- */

struct defaults { /* set by CONFIG */
    char *cwd, *user;
    char **env;
    uint64_t idle_ns;
};
extern struct defaults defaults;

struct identity {
    uid_t uid;
    gid_t gid;
    const char *name, *home; /* "root", "/root" if unknown; static storage until the next call */
};
/* "" : the default user. False: no such user. Reads the sandbox's own passwd and group. */
bool resolve_user(const char *text, struct identity *out);

struct agent_options {
    int in_fd, out_fd;   /* the stream; the same for a socket */
    int oom_fd;          /* counts out-of-memory kills (memory.oom_control or memory.events); -1: cannot tell */
    int score_fd;        /* our own oom_score_adj, to shield the agent; -1: leave it */
    unsigned open_files; /* descriptors that each process of a command may have; 0: as many as the agent */
    bool init;           /* we are PID 1: reap everybody's orphans */
    int busy_fd; /* an eventfd, told after a while and then once a second that commands run; -1, 0: nobody asks */
    bool whole;  /* and nobody from outside enters our pid namespace: all its processes are below us */
};
/* All that does not depend on the stream. agent_serve does it if nobody has: a spawner calls it ahead of need. */
void agent_prepare(void);
/* No ptrace, no /proc/PID/mem or fd for code in the sandbox, also as the same user; and our end when whoever started us
 * ends. Each change of ids may undo both. */
void agent_guard(void);
/* What the first command will look up, so that it is in the kernel's caches: a sandbox's root is freshly mounted, and
 * nothing is there yet. */
void agent_look_ahead(void);
/* Serves until the stream ends. Does not return. */
_Noreturn void agent_serve(const struct agent_options *options);

#endif
