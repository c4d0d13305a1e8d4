/* Putting an archive's entries beneath one directory, and nowhere else. */
#ifndef DUTYFREE_UNPACK_H
#define DUTYFREE_UNPACK_H

#include <stdbool.h>
#include <stddef.h>

#include "path.h"
#include "tar.h"

struct unpack_deferred;

struct unpack {
    int root;
    bool made_root;
    struct owner owner;
    mode_t umask;
    const char *reason;               /* what the last failure was, for people; NULL: its errno says it */
    char *parent;                     /* the directory used last, cleaned, relative to the root, and its descriptor */
    int parent_fd;                    /* -1: none */
    struct unpack_deferred *deferred; /* directories that only become read-only at the end */
};

/* Opens (or makes) the target. All return 0 or an errno. */
int unpack_start(struct unpack *unpack, const char *path, const struct owner *owner);
/* Makes one entry. For a regular file *fd is open for its content, else -1. */
int unpack_entry(struct unpack *unpack, const struct tar_entry *entry, int *fd);
/* After a file's content: sets its time and closes it. */
int unpack_finish_file(int fd, const struct timespec *mtime);
/* After the last entry. */
int unpack_finish(struct unpack *unpack);
void unpack_close(struct unpack *unpack);

/* ---- beneath.c ---- */

/* A name without ".", doubled or trailing slashes, to be freed; "" is the root. NULL with errno: EPERM if it is
 * absolute or has "..", which is never needed and never meant well. */
char *beneath_clean(const char *name);
/* A descriptor (O_PATH) of the directory `path` (cleaned) beneath `root`, through no symbolic link: EPERM if there is
 * one. With `owner` missing directories are made, and are that user's. -1 with errno. */
int beneath_open(int root, const char *path, const struct owner *owner);

#endif
