/* A tree into an empty directory. Directories are visited one inside the other and only the innermost is open: a tree
 * as deep as untrusted code can make it costs memory for the names that are still to visit, and no descriptors. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

struct level { /* a directory that has been entered */
    struct stat st;
    dev_t target_device;
    ino_t target_inode;
    char *names; /* of the directories in it that were not visited yet, one after the other */
    size_t at, size, room;
};

struct path { /* from the root to where the copy is */
    struct level *levels;
    size_t depth, room;
};

static bool note_directory(struct level *level, const char *name) {
    size_t length = strlen(name) + 1;
    if (level->size + length > level->room) {
        size_t room = (level->size + length) * 2;
        char *names = realloc(level->names, room);
        if (!names)
            return false;
        level->names = names;
        level->room = room;
    }
    memcpy(level->names + level->size, name, length);
    level->size += length;
    return true;
}

/* Copies what the present directory holds, and notes the directories among it. */
static const char *scan(struct copy *copy, struct level *level) {
    int fd = openat(copy->from, ".", O_RDONLY | O_DIRECTORY | O_NOATIME | O_CLOEXEC);
    DIR *listing = fd < 0 ? NULL : fdopendir(fd);
    if (!listing) {
        if (fd >= 0)
            close(fd);
        return "list a directory";
    }
    const char *step = NULL;
    struct stat st;
    while (!step) {
        errno = 0;
        struct dirent *entry = readdir(listing);
        if (!entry) {
            step = errno ? "list a directory" : NULL;
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (fstatat(copy->from, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            step = "look at an entry";
        else if (!S_ISDIR(st.st_mode))
            step = entry_copy(copy, entry->d_name, &st);
        else if (!note_directory(level, entry->d_name))
            step = "remember a directory";
    }
    int saved = errno;
    closedir(listing);
    errno = saved;
    return step;
}

static const char *arrive(struct copy *copy, struct path *path) {
    struct stat target;
    if (path->depth == path->room) {
        size_t room = path->room ? path->room * 2 : 32;
        void *levels = realloc(path->levels, room * sizeof *path->levels);
        if (!levels)
            return "remember a directory";
        path->levels = levels;
        path->room = room;
    }
    struct level *level = &path->levels[path->depth];
    *level = (struct level){0};
    if (fstat(copy->from, &level->st) != 0 || fstat(copy->to, &target) != 0)
        return "look at a directory";
    level->target_device = target.st_dev;
    level->target_inode = target.st_ino;
    path->depth++;
    return scan(copy, level);
}

static const char *descend(struct copy *copy, struct path *path, const char *name) {
    int from = openat(copy->from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC);
    if (from < 0)
        return "open a directory";
    close(copy->from);
    copy->from = from;
    if (mkdirat(copy->to, name, 0700) != 0)
        return "make a directory";
    int to = openat(copy->to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (to < 0)
        return "open a new directory";
    close(copy->to);
    copy->to = to;
    copy->done.entries++;
    return arrive(copy, path);
}

static int parent_of(int fd, dev_t device, ino_t inode) {
    struct stat st;
    int parent = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (parent >= 0 && (fstat(parent, &st) != 0 || st.st_dev != device || st.st_ino != inode)) {
        close(parent);
        errno = ESTALE; /* moved while it was copied */
        return -1;
    }
    return parent;
}

static const char *ascend(struct copy *copy, struct path *path) {
    struct level *level = &path->levels[--path->depth];
    const char *step = entry_describe(copy->from, copy->to, &level->st);
    free(level->names);
    if (step || path->depth == 0)
        return step;
    level--;
    int from = parent_of(copy->from, level->st.st_dev, level->st.st_ino);
    int to = from < 0 ? -1 : parent_of(copy->to, level->target_device, level->target_inode);
    if (to < 0) {
        if (from >= 0)
            close(from);
        return "return to a directory";
    }
    close(copy->from);
    close(copy->to);
    copy->from = from;
    copy->to = to;
    return NULL;
}

static const char *remove_links(struct copy *copy) {
    if (copy->links < 0)
        return NULL;
    DIR *listing = fdopendir(copy->links);
    if (!listing)
        return "list the links";
    const char *step = NULL;
    for (struct dirent *entry; !step && (entry = readdir(listing));)
        if (entry->d_name[0] != '.' && unlinkat(copy->links, entry->d_name, 0) != 0)
            step = "remove a link";
    closedir(listing);
    copy->links = -1;
    if (!step && unlinkat(copy->root, copy->place, AT_REMOVEDIR) != 0)
        step = "remove the links";
    return step;
}

static const char *walk(struct copy *copy, struct path *path) {
    const char *step = arrive(copy, path);
    while (!step) {
        struct level *level = &path->levels[path->depth - 1];
        if (level->at < level->size) {
            const char *name = level->names + level->at;
            level->at += strlen(name) + 1;
            step = descend(copy, path, name); /* moves `levels`: `name` stays where it is */
        } else if (path->depth > 1) {
            step = ascend(copy, path);
        } else if (!(step = remove_links(copy))) {
            return ascend(copy, path);
        }
    }
    return step;
}

const char *copy_tree(int from, int to, struct copied *done) {
    struct copy copy = {
        .from = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
        .to = openat(to, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), /* `to` may be a mount that was not opened */
        .links = -1,
        .root = to};
    struct path path = {0};
    const char *step = copy.from < 0 || copy.to < 0 ? "begin the copy" : walk(&copy, &path);
    step = content_finish(&copy, step);
    int saved = errno;
    while (path.depth > 0)
        free(path.levels[--path.depth].names);
    free(path.levels);
    for (int i = 0, fds[] = {copy.from, copy.to, copy.links}; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    *done = copy.done;
    errno = saved;
    return step;
}
