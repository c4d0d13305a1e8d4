/* Owns TAR_OUT: a tree as a pax stream, made piece by piece as credit and queue allow. Devices, fifos and sockets are
 * left out; of /proc, /sys and cgroups mounted inside the tree only the mount point is kept. A file that shrinks while
 * it is read is filled up with zeros and one that grows is cut, so the stream always parses. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "file.h"
#include "path.h"
#include "tar.h"
#include "walk.h"

struct tar_out {
    struct download download;
    bool walking; /* false: one file only */
    struct walk walk;
    struct tar_buffer head; /* header blocks on their way out */
    size_t head_at;
    int fd;             /* content on its way out; -1: none, or it has come to an early end */
    uint64_t file_left; /* bytes the header promised */
    uint32_t padding_left;
    bool finished; /* `head` holds the end of the archive */
};

static int encode(struct tar_out *tar, char type, const char *link, const struct stat *st) {
    const char *name = tar->walking && tar->walk.path_size ? tar->walk.path : ".";
    tar->head.size = tar->head_at = 0;
    return tar_encode(&tar->head, type, name, link, st) ? 0 : ENOMEM;
}

/* Takes over `fd`, a regular file's. Whoever has taken the last byte closes it: of an empty file nobody takes any. */
static int encode_file(struct tar_out *tar, int fd, const struct stat *st) {
    if (st->st_size > 0)
        tar->fd = fd;
    else
        close(fd);
    tar->file_left = (uint64_t)st->st_size;
    tar->padding_left = tar_padding(tar->file_left);
    return encode(tar, '0', "", st);
}

static int visit_file(struct tar_out *tar, const char *name) {
    struct stat st;
    int fd = openat(walk_fd(&tar->walk), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = fstat(fd, &st) != 0 ? errno : S_ISREG(st.st_mode) ? walk_append(&tar->walk, name) : ENOENT;
    if (error) {
        close(fd);
        return error;
    }
    return encode_file(tar, fd, &st);
}

static int visit_link(struct tar_out *tar, const char *name) {
    char target[PATH_MAX];
    struct stat st;
    int parent = walk_fd(&tar->walk);
    ssize_t size = readlinkat(parent, name, target, sizeof target - 1);
    if (size < 0 || fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == EINVAL ? ENOENT : errno; /* EINVAL: no longer a link */
    target[size] = 0;
    int error = walk_append(&tar->walk, name);
    return error ? error : encode(tar, '2', target, &st);
}

static int visit_directory(struct tar_out *tar, const char *name) {
    struct stat st;
    const char *left;
    dev_t device = walk_device(&tar->walk);
    int error = walk_enter(&tar->walk, name, &st);
    if (!error)
        error = encode(tar, '5', "", &st);
    if (!error && st.st_dev != device && path_is_pseudo(walk_fd(&tar->walk)))
        error = walk_leave(&tar->walk, &left);
    return error;
}

static int visit(struct tar_out *tar, const struct dirent64 *entry) {
    unsigned char type = entry->d_type;
    struct stat st;
    if (type == DT_UNKNOWN) { /* some filesystems do not tell */
        if (fstatat(walk_fd(&tar->walk), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            return errno;
        type = IFTODT(st.st_mode);
    }
    walk_trim(&tar->walk);
    if (type == DT_REG)
        return visit_file(tar, entry->d_name);
    if (type == DT_LNK)
        return visit_link(tar, entry->d_name);
    return type == DT_DIR ? visit_directory(tar, entry->d_name) : 0;
}

/* Prepares the next piece; 0 or an errno. */
static int advance(struct tar_out *tar) {
    struct dirent64 *entry = NULL;
    const char *left = NULL;
    int error = 0;
    if (tar->walking && tar->walk.depth > 0) {
        error = walk_next(&tar->walk, &entry);
        if (error)
            return error;
        if (!entry)
            return walk_leave(&tar->walk, &left);
        error = visit(tar, entry);
        /* What has gone or changed its kind since it was listed is simply not there. */
        return error == ENOENT || error == ELOOP || error == ENOTDIR ? 0 : error;
    }
    tar->finished = true;
    tar->head.size = tar->head_at = 0;
    return tar_encode_end(&tar->head) ? 0 : ENOMEM;
}

/* Up to `room` bytes of the present file; 0 or an errno. */
static int fill_content(struct tar_out *tar, uint8_t *space, size_t room, size_t *used) {
    size_t most = room < tar->file_left ? room : (size_t)tar->file_left;
    ssize_t got = tar->fd >= 0 ? read(tar->fd, space, most) : 0;
    if (got < 0 && errno != EINTR)
        return errno;
    if (got == 0) {
        memset(space, 0, most);
        got = (ssize_t)most;
    }
    if (got > 0) {
        *used += (size_t)got;
        tar->file_left -= (uint64_t)got;
    }
    if (tar->file_left == 0 && tar->fd >= 0) {
        close(tar->fd);
        tar->fd = -1;
    }
    return 0;
}

static bool is_spent(const struct tar_out *tar) {
    return tar->finished && tar->head_at == tar->head.size;
}

static int fill(struct tar_out *tar, uint8_t *space, size_t room, size_t *used) {
    int error = 0;
    *used = 0;
    while (*used < room && !is_spent(tar) && !error) {
        size_t rest = room - *used, ready = tar->head.size - tar->head_at;
        if (ready > 0) {
            size_t size = ready < rest ? ready : rest;
            memcpy(space + *used, tar->head.data + tar->head_at, size);
            tar->head_at += size;
            *used += size;
        } else if (tar->file_left > 0) {
            error = fill_content(tar, space + *used, rest, used);
        } else if (tar->padding_left > 0) {
            size_t size = tar->padding_left < rest ? tar->padding_left : rest;
            memset(space + *used, 0, size);
            tar->padding_left -= (uint32_t)size;
            *used += size;
        } else {
            error = advance(tar);
        }
    }
    return error;
}

static void tar_out_pull(struct channel *channel) {
    struct tar_out *tar = (struct tar_out *)channel;
    if (!download_turn(&tar->download))
        return;
    while (!is_spent(tar)) {
        size_t room, used;
        uint8_t *space = download_space(&tar->download, SIZE_MAX, &room);
        if (!space)
            return;
        int error = fill(tar, space, room, &used);
        if (used > 0)
            download_commit(&tar->download, used);
        if (error) {
            path_error(channel->id, "entry", error, tar->walk.path ? tar->walk.path : ".", NULL);
            return;
        }
    }
    end_ok(channel->id, NULL, 0);
}

static void tar_out_close(struct channel *channel) {
    struct tar_out *tar = (struct tar_out *)channel;
    download_close(&tar->download);
    if (tar->walking)
        walk_finish(&tar->walk);
    if (tar->fd >= 0)
        close(tar->fd);
    free(tar->head.data);
    free(tar);
}

static const struct channel_ops tar_out_ops = {.frame = download_frame, .pull = tar_out_pull, .close = tar_out_close};

/* Prepares the first piece from `fd`, the root, which it takes over. */
static int start(struct tar_out *tar, int fd) {
    struct stat st;
    int error = fstat(fd, &st) != 0 ? errno : S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) ? 0 : EINVAL;
    if (error) {
        close(fd);
        return error;
    }
    if (S_ISREG(st.st_mode))
        return encode_file(tar, fd, &st);
    error = walk_start(&tar->walk, fd, false);
    tar->walking = true;
    return error ? error : encode(tar, '5', "", &st);
}

void request_tar_out(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint64_t window = take_u64(&reader);
    struct slice text = take_bytes(&reader);
    if (!reader_done(&reader))
        protocol_error("TAR_OUT");
    char path[PATH_MAX];
    if (!path_take(id, text, "path", path))
        return;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct tar_out *tar = fd >= 0 ? calloc(1, sizeof *tar) : NULL;
    if (!tar) {
        path_error(id, "path", errno, path, errno == ENXIO ? "neither a file nor a directory" : NULL);
        if (fd >= 0)
            close(fd);
        return;
    }
    tar->fd = -1;
    int error = start(tar, fd);
    if (error) {
        path_error(id, "path", error, path, error == EINVAL ? "neither a file nor a directory" : NULL);
        tar_out_close(&tar->download.channel);
    } else {
        download_open(&tar->download, id, &tar_out_ops, window);
    }
}
