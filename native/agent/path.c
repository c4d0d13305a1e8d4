/* Owns the checks on paths in requests and the making of directories above a file. Refuses nothing that is absolute:
 * inside the sandbox every path is the sandbox's own. */
#define _GNU_SOURCE
#include "path.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

bool path_take(uint32_t id, struct slice text, const char *field, char out[PATH_MAX]) {
    if (text.size >= PATH_MAX)
        end_error(id, ENAMETOOLONG, field, "the path is longer than 4095 bytes");
    else if (text.size == 0 || text.data[0] != '/')
        end_error(id, EINVAL, field, "the path is not absolute");
    else if (memchr(text.data, 0, text.size))
        end_error(id, EINVAL, field, "the path holds a NUL byte");
    else {
        memcpy(out, text.data, text.size);
        out[text.size] = 0;
        return true;
    }
    return false;
}

void path_error(uint32_t id, const char *field, int errnum, const char *path, const char *reason) {
    char detail[PATH_MAX + 256];
    snprintf(detail, sizeof detail, "%s: %s", path, reason ? reason : strerror(errnum));
    end_error(id, errnum, field, detail);
}

bool owner_default(uint32_t id, struct owner *out) {
    *out = (struct owner){0};
    if (acts_as_named() || !defaults.user || !defaults.user[0])
        return true;
    struct identity identity;
    if (!resolve_user("", &identity)) {
        end_error(id, ENOENT, "user", defaults.user);
        return false;
    }
    out->uid = identity.uid;
    out->gid = identity.gid;
    out->change = identity.uid != geteuid() || identity.gid != getegid();
    return true;
}

bool path_make_parents(const char *path, const struct owner *owner) {
    char parent[PATH_MAX];
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/')
        size--;
    for (size_t i = 1; i < size; i++) {
        if (path[i] != '/')
            continue;
        memcpy(parent, path, i);
        parent[i] = 0;
        if (mkdir(parent, 0755) == 0) {
            if (owner->change && lchown(parent, owner->uid, owner->gid) != 0)
                return false;
        } else if (errno != EEXIST) {
            return false;
        }
    }
    return true;
}

int path_make_directory(const char *path, mode_t mode, const struct owner *owner) {
    int made = mkdir(path, mode & 07777);
    if (made != 0 && errno == ENOENT && path_make_parents(path, owner))
        made = mkdir(path, mode & 07777);
    if (made != 0) {
        struct stat st;
        if (errno != EEXIST)
            return -1;
        if (stat(path, &st) != 0)
            return -1;
        errno = ENOTDIR;
        return S_ISDIR(st.st_mode) ? 0 : -1;
    }
    if ((mode & PATH_MASKED_BITS) && chmod(path, mode & 07777) != 0)
        return -1;
    if (owner->change && lchown(path, owner->uid, owner->gid) != 0)
        return -1;
    return 1;
}

bool path_is_pseudo(int fd) {
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && (fs.f_type == PROC_SUPER_MAGIC || fs.f_type == SYSFS_MAGIC ||
                                     fs.f_type == CGROUP_SUPER_MAGIC || fs.f_type == CGROUP2_SUPER_MAGIC);
}
