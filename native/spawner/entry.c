/* One entry of a tree with all that belongs to it. Reads what untrusted code has written: nothing is opened but regular
 * files, no link is followed, and nothing is written outside the directory the copy is in. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "state.h"

/* The overlay's own attributes tell of the layer they were made in; of these only the opaque mark means the same in the
 * copy. (A sandbox's own attributes of such names are kept by the kernel as user.overlay.overlay.*.) */
static bool is_kept(const char *name) {
    static const char overlay[] = "user.overlay.";
    if (strncmp(name, overlay, sizeof overlay - 1) == 0)
        return strcmp(name + sizeof overlay - 1, "opaque") == 0 ||
               strncmp(name + sizeof overlay - 1, "overlay.", 8) == 0;
    return strncmp(name, "user.", 5) == 0 || strcmp(name, "security.capability") == 0 ||
           strncmp(name, "system.posix_acl_", 17) == 0;
}

static bool copy_attributes(int from, int to) {
    char names[4096], *list = names, value[4096], *room = value;
    ssize_t size = flistxattr(from, names, sizeof names);
    bool done = true;
    if (size < 0 && errno == ERANGE && (list = malloc(XATTR_LIST_MAX)))
        size = flistxattr(from, list, XATTR_LIST_MAX);
    if (size < 0)
        done = errno == ENOTSUP;
    for (ssize_t at = 0; done && at < size; at += (ssize_t)strlen(list + at) + 1) {
        if (!is_kept(list + at))
            continue;
        ssize_t length = fgetxattr(from, list + at, room, room == value ? sizeof value : XATTR_SIZE_MAX);
        if (length < 0 && errno == ERANGE && room == value && (room = malloc(XATTR_SIZE_MAX)))
            length = fgetxattr(from, list + at, room, XATTR_SIZE_MAX);
        done = length >= 0 && fsetxattr(to, list + at, room, (size_t)length, 0) == 0;
    }
    int saved = errno;
    if (list != names)
        free(list);
    if (room != value)
        free(room);
    errno = saved;
    return done;
}

const char *entry_describe(int from, int to, const struct stat *st) {
    struct timespec times[2] = {st->st_atim, st->st_mtim};
    if ((st->st_uid || st->st_gid) && fchown(to, st->st_uid, st->st_gid) != 0)
        return "give an owner";
    if (fchmod(to, st->st_mode & 07777) != 0) /* after the owner, which clears the set-id bits */
        return "set a mode";
    if (!copy_attributes(from, to))
        return "copy attributes";
    return futimens(to, times) != 0 ? "set times" : NULL;
}

static const char *copy_regular(struct copy *copy, const char *name, const struct stat *st) {
    struct stat opened;
    struct content file = {.to = -1, .st = *st};
    const char *step;
    file.from = openat(copy->from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOATIME | O_CLOEXEC);
    if (file.from < 0)
        return "open a file";
    file.to = openat(copy->to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file.to < 0)
        step = "make a file";
    else if (fstat(file.from, &opened) != 0 || opened.st_ino != st->st_ino || !S_ISREG(opened.st_mode))
        step = "find a file as it was";
    else
        return content_copy(copy, &file);
    int saved = errno;
    close(file.from);
    if (file.to >= 0)
        close(file.to);
    errno = saved;
    return step;
}

static const char *copy_link(const struct copy *copy, const char *name) {
    char target[PATH_MAX];
    ssize_t size = readlinkat(copy->from, name, target, sizeof target);
    if (size < 0 || size == sizeof target)
        return "read a link";
    target[size] = 0;
    return symlinkat(target, copy->to, name) != 0 ? "make a link" : NULL;
}

static bool is_whiteout(const struct stat *st) {
    return S_ISCHR(st->st_mode) && st->st_rdev == makedev(0, 0);
}

static const char *copy_special(const struct copy *copy, const char *name, const struct stat *st) {
    if (!is_whiteout(st) && !S_ISFIFO(st->st_mode) && !S_ISSOCK(st->st_mode)) {
        errno = EPERM; /* devices cannot be made in a sandbox: this is none of its files */
        return "copy a device";
    }
    if (mknodat(copy->to, name, st->st_mode & (S_IFMT | 07777), 0) != 0)
        return "make a special file";
    return fchmodat(copy->to, name, st->st_mode & 07777, 0) != 0 ? "set a mode" : NULL;
}

/* What belongs to an entry that cannot be opened. */
static const char *describe_by_name(const struct copy *copy, const char *name, const struct stat *st) {
    struct timespec times[2] = {st->st_atim, st->st_mtim};
    if ((st->st_uid || st->st_gid) && fchownat(copy->to, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) != 0)
        return "give an owner";
    return utimensat(copy->to, name, times, AT_SYMLINK_NOFOLLOW) != 0 ? "set times" : NULL;
}

static bool open_links(struct copy *copy) {
    uint64_t chance[2];
    if (copy->links >= 0)
        return true;
    if (getrandom(chance, sizeof chance, 0) != sizeof chance)
        return false;
    snprintf(copy->place, sizeof copy->place, ".links-%016" PRIx64 "%08" PRIx64, chance[0], chance[1] >> 32);
    if (mkdirat(copy->root, copy->place, 0700) != 0)
        return false;
    copy->links = openat(copy->root, copy->place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return copy->links >= 0;
}

const char *entry_copy(struct copy *copy, const char *name, const struct stat *st) {
    char inode[24];
    bool shared = st->st_nlink > 1 && !is_whiteout(st); /* all whiteouts of a layer may be one inode */
    const char *step = NULL;
    copy->done.entries++;
    if (shared) {
        if (!open_links(copy))
            return "make a place for links";
        snprintf(inode, sizeof inode, "%" PRIu64, (uint64_t)st->st_ino);
        if (linkat(copy->links, inode, copy->to, name, 0) == 0)
            return NULL;
        if (errno != ENOENT)
            return "link a file";
    }
    if (S_ISREG(st->st_mode))
        step = copy_regular(copy, name, st);
    else if (S_ISLNK(st->st_mode))
        step = copy_link(copy, name);
    else
        step = copy_special(copy, name, st);
    if (!step && !S_ISREG(st->st_mode) && !is_whiteout(st))
        step = describe_by_name(copy, name, st);
    if (!step && shared && linkat(copy->to, name, copy->links, inode, 0) != 0)
        step = "keep a link";
    return step;
}
