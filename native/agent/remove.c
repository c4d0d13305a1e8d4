/* Owns removal. Never follows a link; memory and descriptors stay bounded whatever the tree's depth and width.
 * A recursive removal is one piece of synchronous work: the agent answers nothing else meanwhile (some seconds per
 * million files), which its callers accept in exchange for an answer that says whether all of it is gone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "path.h"
#include "walk.h"

/* Removes `entry`, or descends into it. */
static int visit(struct walk *walk, const struct dirent64 *entry) {
    struct stat st;
    if (entry->d_type != DT_DIR) {
        if (unlinkat(walk_fd(walk), entry->d_name, 0) == 0 || errno == ENOENT)
            return 0;
        if (errno != EISDIR)
            return errno;
    }
    int error = walk_enter(walk, entry->d_name, &st);
    if (error == ENOTDIR || error == ELOOP) /* swapped for something else since it was listed */
        error = unlinkat(walk_fd(walk), entry->d_name, 0) == 0 ? 0 : errno;
    return error == ENOENT ? 0 : error;
}

/* Empties the directory at the walk's root. */
static int empty(struct walk *walk) {
    for (;;) {
        struct dirent64 *entry;
        const char *name;
        int error = walk_next(walk, &entry);
        if (!error && entry) {
            if ((error = visit(walk, entry)) != 0) {
                walk_append(walk, entry->d_name);
                return error;
            }
            continue;
        }
        if (error || (error = walk_leave(walk, &name)) != 0)
            return error;
        if (!name)
            return 0;
        if (unlinkat(walk_fd(walk), name, AT_REMOVEDIR) != 0 && errno != ENOENT)
            return errno;
        walk_trim(walk);
    }
}

static void remove_tree(uint32_t id, const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        path_error(id, "path", errno, path, NULL);
        return;
    }
    struct walk walk;
    int error = walk_start(&walk, fd, true);
    if (!error)
        error = empty(&walk);
    if (!error && rmdir(path) != 0 && errno != ENOENT) {
        error = errno;
        walk.path[0] = 0;
    }
    if (!error) {
        end_ok(id, NULL, 0);
    } else {
        char culprit[PATH_MAX + 1100];
        const char *inside = walk.path ? walk.path : "";
        snprintf(culprit, sizeof culprit, "%s%s%.1024s", path, inside[0] ? "/" : "", inside);
        path_error(id, "path", error, culprit, NULL);
    }
    walk_finish(&walk);
}

void request_remove(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint32_t options = take_u32(&reader);
    struct slice text = take_bytes(&reader), user = take_user(&reader);
    if (!reader_done(&reader) || options > 1)
        protocol_error("REMOVE");
    char path[PATH_MAX];
    if (!path_take(id, text, "path", path) || !act_as(id, user))
        return;
    /* A trailing slash would make the kernel follow a link to a directory. */
    size_t end = text.size;
    while (end > 1 && path[end - 1] == '/')
        path[--end] = 0;
    const char *last = strrchr(path, '/') + 1;
    if (!last[0] || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
        path_error(id, "path", EBUSY, path, "not something that can be removed");
    else if (unlink(path) == 0)
        end_ok(id, NULL, 0);
    else if (errno != EISDIR)
        path_error(id, "path", errno, path, NULL);
    else if (rmdir(path) == 0)
        end_ok(id, NULL, 0);
    else if (errno == ENOTEMPTY && (options & 1))
        remove_tree(id, path);
    else
        path_error(id, "path", errno, path, NULL);
}
