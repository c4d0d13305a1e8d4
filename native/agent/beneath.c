/* Owns the way from an untrusted name to a directory beneath a root. openat2 does it in one call; where the kernel, or
 * a container's seccomp filter, does not have it, every component is opened by itself with O_NOFOLLOW, to the same end:
 * names hold no ".." (beneath_clean), so without links there is no way out. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "unpack.h"

enum { DIRECTORY = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

char *beneath_clean(const char *name) {
    size_t used = 0;
    if (name[0] == '/') {
        errno = EPERM;
        return NULL;
    }
    char *clean = malloc(strlen(name) + 1);
    while (clean && *name) {
        size_t size = strcspn(name, "/");
        if (size == 2 && memcmp(name, "..", 2) == 0) {
            free(clean);
            errno = EPERM;
            return NULL;
        }
        if (size > 0 && !(size == 1 && name[0] == '.')) {
            if (used > 0)
                clean[used++] = '/';
            memcpy(clean + used, name, size);
            used += size;
        }
        name += size + (name[size] == '/');
    }
    if (clean)
        clean[used] = 0;
    return clean;
}

static int open_at_once(int root, const char *path) {
    struct open_how how = {.flags = DIRECTORY,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

/* One component further. */
static int step(int parent, const char *name, const struct owner *owner) {
    struct stat st;
    int fd = openat(parent, name, DIRECTORY);
    if (fd < 0 && errno == ENOENT && owner) {
        if (mkdirat(parent, name, 0755) == 0) {
            if (owner->change && fchownat(parent, name, owner->uid, owner->gid, AT_SYMLINK_NOFOLLOW) != 0)
                return -1;
        } else if (errno != EEXIST) {
            return -1;
        }
        fd = openat(parent, name, DIRECTORY);
    }
    if (fd < 0 && errno == ENOTDIR) {
        bool is_link = fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
        errno = is_link ? EPERM : ENOTDIR;
    }
    return fd;
}

int beneath_open(int root, const char *path, const struct owner *owner) {
    int at = open_at_once(root, path[0] ? path : ".");
    if (at >= 0)
        return at;
    at = openat(root, ".", DIRECTORY);
    while (at >= 0 && *path) {
        char name[NAME_MAX + 1];
        size_t size = strcspn(path, "/");
        int next = -1;
        if (size < sizeof name) {
            memcpy(name, path, size);
            name[size] = 0;
            next = step(at, name, owner);
        } else {
            errno = ENAMETOOLONG;
        }
        int error = errno;
        close(at);
        errno = error;
        at = next;
        path += size + (path[size] == '/');
    }
    return at;
}
