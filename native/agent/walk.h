/* A depth-first walk over a tree of any depth and width, with bounded descriptors and without following links. */
#ifndef DUTYFREE_WALK_H
#define DUTYFREE_WALK_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

struct walk_level; /* one directory between the root and here */

struct walk {
    struct walk_level *levels;
    size_t depth, capacity;
    size_t closed; /* the outermost levels, whose descriptors were given up */
    char *path;    /* relative to the root, without a leading slash, NUL-terminated; "" at the root */
    size_t path_size, path_capacity;
    bool consuming; /* entries are removed as they are visited: a directory that is opened again starts anew */
};

/* Starts at an open directory, which the walk then owns. All return 0 or an errno. */
int walk_start(struct walk *walk, int fd, bool consuming);
/* The next entry of the present directory, or NULL at its end. Valid until the next call. "." and ".." are left out. */
int walk_next(struct walk *walk, struct dirent64 **entry);
/* Descends into `name`; `st` tells what was entered. ENOTDIR or ELOOP: it is not a directory. */
int walk_enter(struct walk *walk, const char *name, struct stat *st);
/* Back to the parent; *name is what was left, within walk->path, valid until the next call. NULL: that was the root. */
int walk_leave(struct walk *walk, const char **name);
/* The present directory. */
int walk_fd(const struct walk *walk);
dev_t walk_device(const struct walk *walk);
/* Sets walk->path to that of `name` in the present directory, for the visitor; walk_trim takes it off again. */
int walk_append(struct walk *walk, const char *name);
void walk_trim(struct walk *walk);
void walk_finish(struct walk *walk);

#endif
