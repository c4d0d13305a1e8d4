/* Saved states: what copy.c, entry.c, content.c, layer.c, freeze.c, snapshot.c and inspect.c share.
 *
 *   copy.c      a tree into an empty directory, entry by entry
 *   entry.c     one entry with all that belongs to it
 *   content.c   what regular files hold, by two threads
 *   layer.c     layers that are made here, in memory, and layers that are given up
 *   freeze.c    nothing in a sandbox runs while its files are read
 *   snapshot.c  the copier: a child without privileges that copies what a sandbox has written
 *   inspect.c   what a sandbox is made of, as seen from outside: the manifest of a reset */
#ifndef DUTYFREE_STATE_H
#define DUTYFREE_STATE_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "spawner.h"

/* ---- copy.c, entry.c, content.c ---- */

struct copied {
    uint64_t entries, bytes; /* of the copy; bytes of file content */
    int32_t error;           /* errno, 0 if all went well */
    char step[76];           /* that failed */
};

struct content { /* of a regular file, and what belongs to it: both are open */
    int from, to;
    struct stat st;
};

enum { HELPER_WAITING = 8 };

struct helper { /* a second thread of the copy */
    pthread_t thread;
    bool started, over;
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct content waiting[HELPER_WAITING];
    unsigned given, taken; /* in all */
    uint64_t bytes;
    const char *step; /* the first that failed, with its errno */
    int error;
};

struct copy {
    int from, to;   /* the directories that the copy is in now */
    int links;      /* where entries with several names are kept by their inode, until the end; -1: none met yet */
    int root;       /* of the target */
    char place[40]; /* the name of `links` below the target's root */
    struct helper helper;
    struct copied done;
};

/* Copies everything below `from` into the empty directory `to`, and what belongs to `from` itself. NULL or the failed
 * step with errno. Nothing may change `from` meanwhile. */
const char *copy_tree(int from, int to, struct copied *done);
/* An entry that is no directory. */
const char *entry_copy(struct copy *copy, const char *name, const struct stat *st);
/* Copies a file, now or later, and closes it. NULL or a step that failed, of this file or an earlier one. */
const char *content_copy(struct copy *copy, const struct content *file);
/* Waits for those that were to be later. `step`, if one failed already; else NULL or that of theirs. */
const char *content_finish(struct copy *copy, const char *step);
/* What belongs to an open file or directory beside its content: owner, mode, attributes, times. */
const char *entry_describe(int from, int to, const struct stat *st);

/* ---- layer.c ---- */

/* An empty layer in memory with room as on the filesystem of `like`; writable until it is sealed. NULL or the step. */
const char *layer_make(uint32_t number, int like);
const char *layer_seal(uint32_t number);
/* Nobody is given the layer any more; those who have it keep it. */
void layer_forget(uint32_t number);
/* A writable view of such a layer, or of a directory of the host, with the owners that the sandbox sees. -1, errno. */
int layer_open(uint32_t number, int userns_fd);
int layer_open_directory(const char *path, int userns_fd);

/* ---- freeze.c ---- */

struct freeze {
    pid_t first;  /* of the sandbox */
    int state_fd; /* where its cgroup is frozen and thawed; -1: by signals */
    int count;    /* of those stopped by signals */
    pid_t *stopped;
};

/* Stops everything in the sandbox and waits until it stands. NULL or the failed step; thaw in either case. */
const char *freeze_begin(struct freeze *freeze, const struct sandbox *sandbox);
/* Safe in a signal handler, and more than once. */
void freeze_end(const struct freeze *freeze);

/* For one whose freezer was killed: everything goes on, also what stood before. */
void freeze_break(const struct sandbox *sandbox);

/* ---- snapshot.c, inspect.c ---- */

struct snapshot_request { /* answered by EVENT_SAVED; head.tag is the snapshot's own number */
    struct request_head head;
    uint32_t sandbox; /* its tag */
    uint32_t layer;   /* to be made in memory; 0: into the directory whose path follows, NUL-terminated */
    uint32_t source;  /* a layer that the sandbox has, to be copied as it is; 0: what the sandbox has written */
};

void snapshot_begin(const struct snapshot_request *request, const char *path);
void snapshot_abandon(uint32_t number);
/* The sandbox is to end: it must be able to. */
void snapshot_abandon_of(const struct sandbox *sandbox);
/* A child has ended. False: it was no copier. */
bool snapshot_collect(pid_t pid, int status);

/* Writes what the sandbox is made of to `fd`, as lines. NULL or the failed step. */
const char *inspect(const struct sandbox *sandbox, int fd);

/* ---- main.c ---- */

struct sandbox *find_sandbox(uint32_t tag);

#endif
