/* The mount calls that libc may not have yet. */
#ifndef DUTYFREE_MOUNTS_H
#define DUTYFREE_MOUNTS_H

#include <linux/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int open_tree_(int dir_fd, const char *path, unsigned flags) {
    return (int)syscall(__NR_open_tree, dir_fd, path, flags);
}
static inline int move_mount_(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    return (int)syscall(__NR_move_mount, from_fd, from, to_fd, to, flags);
}
static inline int mount_setattr_(int dir_fd, const char *path, unsigned flags, struct mount_attr *attributes) {
    return (int)syscall(__NR_mount_setattr, dir_fd, path, flags, attributes, sizeof *attributes);
}
static inline int fsopen_(const char *type) {
    return (int)syscall(__NR_fsopen, type, FSOPEN_CLOEXEC);
}
static inline int fsconfig_(int fd, unsigned command, const char *key, const void *value, int aux) {
    return (int)syscall(__NR_fsconfig, fd, command, key, value, aux);
}
static inline int fsmount_(int fd, unsigned attributes) {
    return (int)syscall(__NR_fsmount, fd, FSMOUNT_CLOEXEC, attributes);
}

#endif
