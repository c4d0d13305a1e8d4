/* Owns what an unpacked entry becomes. Regular files, directories, symbolic and hard links; nothing else. Set-user and
 * set-group bits are dropped, owners are the default user's, what is in the way is replaced unless it is a directory.
 * The last component is never followed, the ones before it go through beneath.c. */
#define _GNU_SOURCE
#include "unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct unpack_deferred {
    struct unpack_deferred *next;
    mode_t mode;
    char path[];
};

static int fail(struct unpack *unpack, int errnum, const char *reason) {
    unpack->reason = reason;
    return errnum;
}

int unpack_start(struct unpack *unpack, const char *path, const struct owner *owner) {
    *unpack = (struct unpack){.root = -1, .parent_fd = -1, .owner = *owner};
    int made = path_make_directory(path, 0755, owner);
    if (made < 0)
        return errno;
    unpack->made_root = made > 0;
    unpack->umask = umask(022); /* there is no other way to ask; one thread, so nobody sees it */
    umask(unpack->umask);
    unpack->root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return unpack->root < 0 ? errno : 0;
}

/* Makes `parent` the directory used last; walks on from the one before if that is above it. */
static int use_parent(struct unpack *unpack, const char *parent) {
    size_t size = unpack->parent ? strlen(unpack->parent) : 0;
    bool known = unpack->parent_fd >= 0;
    if (known && strcmp(unpack->parent, parent) == 0)
        return 0;
    int from = unpack->root;
    const char *rest = parent;
    if (known && size > 0 && strncmp(unpack->parent, parent, size) == 0 && parent[size] == '/') {
        from = unpack->parent_fd;
        rest = parent + size + 1;
    }
    int fd = beneath_open(from, rest, &unpack->owner);
    if (fd < 0)
        return fail(unpack, errno, errno == EPERM ? "its path leads through a symbolic link" : NULL);
    char *copy = strdup(parent);
    if (!copy) {
        close(fd);
        return ENOMEM;
    }
    if (known)
        close(unpack->parent_fd);
    free(unpack->parent);
    unpack->parent = copy;
    unpack->parent_fd = fd;
    return 0;
}

/* Takes away what is in the way of a new entry. */
static int clear(struct unpack *unpack, const char *base) {
    if (unlinkat(unpack->parent_fd, base, 0) == 0 || errno == ENOENT)
        return 0;
    return fail(unpack, errno, errno == EISDIR ? "a directory is in its place" : NULL);
}

static int give_away(struct unpack *unpack, const char *base) {
    const struct owner *owner = &unpack->owner;
    bool done = !owner->change || fchownat(unpack->parent_fd, base, owner->uid, owner->gid, AT_SYMLINK_NOFOLLOW) == 0;
    return done ? 0 : errno;
}

static int defer(struct unpack *unpack, const char *path, mode_t mode) {
    size_t size = strlen(path) + 1;
    struct unpack_deferred *deferred = malloc(sizeof *deferred + size);
    if (!deferred)
        return ENOMEM;
    deferred->next = unpack->deferred;
    deferred->mode = mode;
    memcpy(deferred->path, path, size);
    unpack->deferred = deferred;
    return 0;
}

/* Through a descriptor: fchmodat would follow a link put there meanwhile. */
static int change_mode(int parent, const char *base, mode_t mode) {
    int fd = openat(parent, base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = fchmod(fd, mode) != 0 ? errno : 0;
    close(fd);
    return error;
}

static int make_directory(struct unpack *unpack, const char *path, const char *base, mode_t mode) {
    int parent = unpack->parent_fd, error = 0;
    /* Without root's rights a directory must stay writable until its content is there. */
    mode_t now = geteuid() == 0 ? mode : mode | 0700, is = now & ~unpack->umask;
    struct stat st;
    int made = mkdirat(parent, base, now);
    if (made != 0 && errno == EEXIST) {
        if (fstatat(parent, base, &st, AT_SYMLINK_NOFOLLOW) != 0)
            return errno;
        if (S_ISDIR(st.st_mode)) {
            made = 1;
            is = st.st_mode & 07777;
        } else if ((error = clear(unpack, base)) == 0) {
            made = mkdirat(parent, base, now);
        }
    }
    if (error || made < 0)
        return error ? error : errno;
    if (made == 0)
        error = give_away(unpack, base);
    if (!error && is != now)
        error = change_mode(parent, base, now);
    return !error && now != mode ? defer(unpack, path, mode) : error;
}

static int make_file(struct unpack *unpack, const char *base, mode_t mode, int *out) {
    enum { HOW = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC };
    int fd = openat(unpack->parent_fd, base, HOW, mode), error = 0;
    if (fd < 0 && errno == EEXIST) {
        if ((error = clear(unpack, base)) != 0)
            return error;
        fd = openat(unpack->parent_fd, base, HOW, mode);
    }
    if (fd < 0)
        return errno;
    if (((mode & unpack->umask) && fchmod(fd, mode) != 0) ||
        (unpack->owner.change && fchown(fd, unpack->owner.uid, unpack->owner.gid) != 0)) {
        error = errno;
        close(fd);
        return error;
    }
    *out = fd;
    return 0;
}

static int make_link(struct unpack *unpack, const char *base, const struct tar_entry *entry) {
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, entry->mtime};
    int error = 0, parent = unpack->parent_fd, made = symlinkat(entry->link, parent, base);
    if (made != 0 && errno == EEXIST) {
        if ((error = clear(unpack, base)) != 0)
            return error;
        made = symlinkat(entry->link, parent, base);
    }
    if (made != 0)
        return errno;
    error = give_away(unpack, base);
    return error || utimensat(parent, base, times, AT_SYMLINK_NOFOLLOW) == 0 ? error : errno;
}

static bool is_same(int a, const char *a_name, int b, const char *b_name) {
    struct stat x, y;
    return fstatat(a, a_name, &x, AT_SYMLINK_NOFOLLOW) == 0 && fstatat(b, b_name, &y, AT_SYMLINK_NOFOLLOW) == 0 &&
           x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int make_hard_link(struct unpack *unpack, const char *base, const char *link) {
    char *source = beneath_clean(link);
    if (!source)
        return fail(unpack, errno, errno == EPERM ? "its link leads outside" : NULL);
    char *slash = strrchr(source, '/');
    if (slash)
        *slash = 0;
    const char *source_base = slash ? slash + 1 : source;
    int error = 0, from = beneath_open(unpack->root, slash ? source : "", NULL);
    if (from < 0) {
        error = fail(unpack, errno, errno == EPERM ? "its link leads through a symbolic link" : NULL);
    } else if (linkat(from, source_base, unpack->parent_fd, base, 0) != 0) {
        error = errno;
        if (error == EEXIST && is_same(from, source_base, unpack->parent_fd, base))
            error = 0;
        else if (error == EEXIST && (error = clear(unpack, base)) == 0)
            error = linkat(from, source_base, unpack->parent_fd, base, 0) != 0 ? errno : 0;
    }
    if (from >= 0)
        close(from);
    free(source);
    return error;
}

static int make_root(struct unpack *unpack, const struct tar_entry *entry) {
    if (entry->type != '5')
        return fail(unpack, EISDIR, "it would replace the target directory");
    mode_t mode = entry->mode & 01777, now = geteuid() == 0 ? mode : mode | 0700;
    if (!unpack->made_root)
        return 0; /* a directory that was there before keeps its mode: it may be /tmp */
    if (fchmod(unpack->root, now) != 0)
        return errno;
    return now != mode ? defer(unpack, "", mode) : 0;
}

static int make_below(struct unpack *unpack, const struct tar_entry *entry, char *path, int *fd) {
    char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    mode_t mode = entry->mode & 01777;
    if (slash)
        *slash = 0;
    int error = use_parent(unpack, slash ? path : "");
    if (slash)
        *slash = '/';
    if (error)
        return error;
    switch (entry->type) {
    case '0':
        return make_file(unpack, base, mode, fd);
    case '1':
        return make_hard_link(unpack, base, entry->link);
    case '2':
        return make_link(unpack, base, entry);
    case '5':
        return make_directory(unpack, path, base, mode);
    case '3':
    case '4':
    case '6':
        return fail(unpack, EPERM, "devices and fifos are refused");
    default:
        return fail(unpack, ENOTSUP, "its type is not supported");
    }
}

int unpack_entry(struct unpack *unpack, const struct tar_entry *entry, int *fd) {
    *fd = -1;
    unpack->reason = NULL;
    if (!entry->name[0])
        return fail(unpack, EINVAL, "it has no name");
    char *path = beneath_clean(entry->name);
    if (!path)
        return fail(unpack, errno, errno == EPERM ? "its name leads outside" : NULL);
    int error = path[0] ? make_below(unpack, entry, path, fd) : make_root(unpack, entry);
    free(path);
    return error;
}

int unpack_finish_file(int fd, const struct timespec *mtime) {
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, *mtime};
    int error = futimens(fd, times) != 0 ? errno : 0;
    close(fd);
    return error;
}

/* Innermost first, as they were put on: a parent may lose its search permission. */
int unpack_finish(struct unpack *unpack) {
    for (const struct unpack_deferred *at = unpack->deferred; at; at = at->next) {
        int fd = beneath_open(unpack->root, at->path, NULL);
        int error = fd < 0 ? errno : change_mode(fd, ".", at->mode);
        if (fd >= 0)
            close(fd);
        if (error)
            return error;
    }
    return 0;
}

void unpack_close(struct unpack *unpack) {
    while (unpack->deferred) {
        struct unpack_deferred *next = unpack->deferred->next;
        free(unpack->deferred);
        unpack->deferred = next;
    }
    free(unpack->parent);
    if (unpack->parent_fd >= 0)
        close(unpack->parent_fd);
    if (unpack->root >= 0)
        close(unpack->root);
}
