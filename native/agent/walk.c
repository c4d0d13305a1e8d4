/* Owns a depth-first position in a directory tree. Keeps the innermost WALK_OPEN directories open; one further out is
 * opened again through ".." when the walk comes back to it, and refused (ESTALE) if that is no longer the same
 * directory, so that a tree moved meanwhile cannot lead the walk elsewhere. */
#define _GNU_SOURCE
#include "walk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WALK_OPEN = 64, WALK_BUFFER = 4096 };

struct walk_level {
    int fd; /* -1: given up */
    dev_t device;
    ino_t inode;
    size_t path_size; /* of walk->path in this directory */
    off_t offset;     /* where the next entry is, for a directory that is opened again */
    char *buffer;     /* of getdents64; NULL: nothing read ahead */
    size_t at, filled;
};

static struct walk_level *top(const struct walk *walk) {
    return &walk->levels[walk->depth - 1];
}

int walk_fd(const struct walk *walk) {
    return top(walk)->fd;
}

dev_t walk_device(const struct walk *walk) {
    return top(walk)->device;
}

static void give_up(struct walk_level *level) {
    if (level->fd >= 0)
        close(level->fd);
    free(level->buffer);
    level->fd = -1;
    level->buffer = NULL;
    level->at = level->filled = 0;
}

static int push(struct walk *walk, int fd, const struct stat *st) {
    if (walk->depth == walk->capacity) {
        size_t capacity = walk->capacity ? walk->capacity * 2 : 16;
        void *levels = realloc(walk->levels, capacity * sizeof *walk->levels);
        if (!levels)
            return ENOMEM;
        walk->levels = levels;
        walk->capacity = capacity;
    }
    walk->levels[walk->depth++] =
        (struct walk_level){.fd = fd, .device = st->st_dev, .inode = st->st_ino, .path_size = walk->path_size};
    if (walk->depth - walk->closed > WALK_OPEN)
        give_up(&walk->levels[walk->closed++]);
    return 0;
}

int walk_start(struct walk *walk, int fd, bool consuming) {
    *walk = (struct walk){.consuming = consuming, .path_capacity = 256};
    struct stat st;
    int error = fstat(fd, &st) != 0 ? errno : 0;
    if (!error && !(walk->path = calloc(1, walk->path_capacity)))
        error = ENOMEM;
    if (!error)
        error = push(walk, fd, &st);
    if (error)
        close(fd);
    return error;
}

static int reopen(struct walk *walk, int child) {
    struct walk_level *level = top(walk);
    struct stat st;
    int fd = openat(child, "..", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = fstat(fd, &st) != 0 ? errno : 0;
    if (!error && (st.st_dev != level->device || st.st_ino != level->inode))
        error = ESTALE;
    if (!error && !walk->consuming && lseek(fd, level->offset, SEEK_SET) < 0)
        error = errno;
    if (error) {
        close(fd);
        return error;
    }
    level->fd = fd;
    walk->closed--;
    return 0;
}

int walk_next(struct walk *walk, struct dirent64 **entry) {
    struct walk_level *level = top(walk);
    *entry = NULL;
    for (;;) {
        if (level->at == level->filled) {
            if (!level->buffer && !(level->buffer = malloc(WALK_BUFFER)))
                return ENOMEM;
            ssize_t got = getdents64(level->fd, level->buffer, WALK_BUFFER);
            if (got < 0)
                return errno == ENOENT ? 0 : errno; /* ENOENT: the directory itself has been removed */
            level->at = 0;
            level->filled = (size_t)got;
            if (got == 0)
                return 0;
        }
        struct dirent64 *found = (struct dirent64 *)(void *)(level->buffer + level->at);
        level->at += found->d_reclen;
        level->offset = found->d_off;
        if (strcmp(found->d_name, ".") != 0 && strcmp(found->d_name, "..") != 0) {
            *entry = found;
            return 0;
        }
    }
}

int walk_append(struct walk *walk, const char *name) {
    size_t size = strlen(name), base = walk->path_size, needed = base + size + 2;
    if (needed > walk->path_capacity) {
        char *path = realloc(walk->path, needed * 2);
        if (!path)
            return ENOMEM;
        walk->path = path;
        walk->path_capacity = needed * 2;
    }
    if (base)
        walk->path[base++] = '/';
    memcpy(walk->path + base, name, size + 1);
    walk->path_size = base + size;
    return 0;
}

void walk_trim(struct walk *walk) {
    walk->path_size = walk->depth ? top(walk)->path_size : 0;
    walk->path[walk->path_size] = 0;
}

int walk_enter(struct walk *walk, const char *name, struct stat *st) {
    int fd = openat(walk_fd(walk), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = fstat(fd, st) != 0 ? errno : walk_append(walk, name);
    if (!error)
        error = push(walk, fd, st);
    if (error) {
        close(fd);
        walk_trim(walk);
    }
    return error;
}

int walk_leave(struct walk *walk, const char **name) {
    struct walk_level *left = top(walk);
    int error = 0;
    *name = NULL;
    walk->depth--;
    if (walk->depth > 0) {
        size_t parent_size = top(walk)->path_size;
        *name = walk->path + parent_size + (parent_size > 0);
        if (top(walk)->fd < 0)
            error = reopen(walk, left->fd);
        walk->path_size = parent_size; /* the text stays, for *name, until the next append */
    }
    give_up(left);
    return error;
}

void walk_finish(struct walk *walk) {
    for (size_t i = walk->closed; i < walk->depth; i++)
        give_up(&walk->levels[i]);
    free(walk->levels);
    free(walk->path);
    *walk = (struct walk){0};
}
