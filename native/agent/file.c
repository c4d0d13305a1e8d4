/* Owns single files: read, write, stat, mkdir, rename. Refuses to read or write anything but regular files: a fifo, a
 * device or a socket could block or never end. Every open is non-blocking, and what was opened is checked afterwards,
 * so that a swap between check and open gains nothing. */
#define _GNU_SOURCE
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "path.h"

static const char not_regular[] = "not a regular file";

/* ---- read ---- */

/* procfs and sysfs say size 0 or 4096 whatever they hold; this is how much of such a file is read. */
enum { PSEUDO_LIMIT = 16 << 20 };

struct reading {
    struct download download;
    int fd;
    uint64_t left, size;
    bool pseudo; /* its size is only known when it has been read */
};

static void read_pull(struct channel *channel) {
    struct reading *reading = (struct reading *)channel;
    if (!download_turn(&reading->download))
        return;
    while (reading->left > 0) {
        size_t room;
        uint8_t *space = download_space(&reading->download, reading->left, &room);
        if (!space)
            return;
        ssize_t got = read(reading->fd, space, room);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            end_error(channel->id, errno, "read", strerror(errno));
            return;
        }
        if (got == 0)
            break; /* it is shorter now, or never was as long as asked for */
        download_commit(&reading->download, (size_t)got);
        reading->left -= (uint64_t)got;
        if (reading->pseudo)
            reading->size += (uint64_t)got;
    }
    end_u64(channel->id, reading->size);
}

static void read_close(struct channel *channel) {
    struct reading *reading = (struct reading *)channel;
    download_close(&reading->download);
    close(reading->fd);
    free(reading);
}

static const struct channel_ops read_ops = {.frame = download_frame, .pull = read_pull, .close = read_close};

/* A descriptor of a regular file, or -1 with the channel ended. */
static int open_to_read(uint32_t id, const char *path, struct stat *st) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        path_error(id, "path", errno, path, errno == ENXIO ? not_regular : NULL);
        return -1;
    }
    if (fstat(fd, st) != 0)
        path_error(id, "path", errno, path, NULL);
    else if (S_ISDIR(st->st_mode))
        path_error(id, "path", EISDIR, path, NULL);
    else if (!S_ISREG(st->st_mode))
        path_error(id, "path", EINVAL, path, not_regular);
    else
        return fd;
    close(fd);
    return -1;
}

void request_read(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint64_t offset = take_u64(&reader), length = take_u64(&reader), window = take_u64(&reader);
    struct slice text = take_bytes(&reader), user = take_user(&reader);
    if (!reader_done(&reader))
        protocol_error("READ");
    char path[PATH_MAX];
    struct stat st;
    if (!path_take(id, text, "path", path) || !act_as(id, user))
        return;
    int fd = open_to_read(id, path, &st);
    if (fd < 0)
        return;
    if (offset > 0 && (offset > INT64_MAX || lseek(fd, (off_t)offset, SEEK_SET) < 0)) {
        end_error(id, EINVAL, "offset", "the offset is out of range");
        close(fd);
        return;
    }
    struct reading *reading = calloc(1, sizeof *reading);
    if (!reading) {
        end_error(id, ENOMEM, "read", strerror(ENOMEM));
        close(fd);
        return;
    }
    reading->fd = fd;
    reading->size = (uint64_t)st.st_size;
    reading->pseudo = st.st_size == 0 && path_is_pseudo(fd);
    /* Without a length the size at this moment is the bound, so that a file that grows has an end. */
    uint64_t rest = reading->size > offset ? reading->size - offset : 0;
    reading->left = length != UINT64_MAX ? length : reading->pseudo ? PSEUDO_LIMIT : rest;
    download_open(&reading->download, id, &read_ops, window);
}

/* ---- write ---- */

enum { WRITE_APPEND = 1, WRITE_EXCLUSIVE = 2, WRITE_AS = 4, WRITE_OPTIONS = 7 };

struct upload {
    struct channel channel;
    int fd;
    uint64_t written;
};

bool write_all(int fd, const uint8_t *data, size_t size) {
    while (size > 0) {
        ssize_t put = write(fd, data, size);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return false;
        data += put;
        size -= (size_t)put;
    }
    return true;
}

static void write_frame(struct channel *channel, uint8_t type, uint8_t flags, const uint8_t *data, size_t size) {
    struct upload *upload = (struct upload *)channel;
    if (type == WIRE_CANCEL && size == 0) {
        end_error(channel->id, ECANCELED, "write", "cancelled: the file is incomplete");
        return;
    }
    if (type != WIRE_DATA)
        protocol_error("unexpected frame on a WRITE channel");
    if (!write_all(upload->fd, data, size)) {
        end_error(channel->id, errno, "write", strerror(errno));
        return;
    }
    upload->written += size;
    if (flags & WIRE_FLAG_END)
        end_u64(channel->id, upload->written);
}

static void write_close(struct channel *channel) {
    struct upload *upload = (struct upload *)channel;
    close(upload->fd);
    free(upload);
}

static const struct channel_ops write_ops = {.frame = write_frame, .close = write_close};

/* Opens what is there already, possibly through links. O_CREAT is kept for dangling links only: with it the kernel
 * refuses (fs.protected_regular) to open another user's file in a sticky directory, even to root. */
static int open_existing(const char *path, int how, mode_t mode) {
    int fd = open(path, how, 0);
    return fd < 0 && errno == ENOENT ? open(path, how | O_CREAT, mode) : fd;
}

/* Creating comes first and exclusively: a new file then needs no fstat, and is known to be ours to chown. */
static int open_to_write(uint32_t id, const char *path, uint32_t options, mode_t mode) {
    int how = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (options & WRITE_APPEND ? O_APPEND : 0);
    struct owner owner;
    if (!owner_default(id, &owner))
        return -1;
    int fd = open(path, how | O_CREAT | O_EXCL, mode);
    if (fd < 0 && errno == ENOENT && path_make_parents(path, &owner))
        fd = open(path, how | O_CREAT | O_EXCL, mode);
    if (fd >= 0) {
        if (((mode & PATH_MASKED_BITS) == 0 || fchmod(fd, mode) == 0) &&
            (!owner.change || fchown(fd, owner.uid, owner.gid) == 0))
            return fd;
        path_error(id, "path", errno, path, NULL);
        close(fd);
        return -1;
    }
    if (errno == EEXIST && !(options & WRITE_EXCLUSIVE))
        fd = open_existing(path, how | (options & WRITE_APPEND ? 0 : O_TRUNC), mode);
    struct stat st;
    if (fd < 0)
        path_error(id, "path", errno, path, errno == ENXIO ? not_regular : NULL);
    else if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return fd;
    else
        path_error(id, "path", EINVAL, path, not_regular);
    if (fd >= 0)
        close(fd);
    return -1;
}

void request_write(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint32_t options = take_u32(&reader), mode = take_u32(&reader);
    struct slice text = take_bytes(&reader), user = {(const uint8_t *)"", 0};
    if (options & WRITE_AS) /* before the data, which is sent without being copied */
        user = take_bytes(&reader);
    struct slice first = take_bytes(&reader);
    if (!reader_done(&reader) || options > WRITE_OPTIONS)
        protocol_error("WRITE");
    char path[PATH_MAX];
    if (!path_take(id, text, "path", path) || !act_as(id, user))
        return;
    int fd = open_to_write(id, path, options, mode & 07777);
    if (fd < 0)
        return;
    struct upload *upload = NULL;
    if (!write_all(fd, first.data, first.size)) {
        end_error(id, errno, "write", strerror(errno));
    } else if (flags & WIRE_FLAG_END) {
        end_u64(id, first.size);
    } else if (!(upload = calloc(1, sizeof *upload))) {
        end_error(id, ENOMEM, "write", strerror(ENOMEM));
    } else {
        upload->fd = fd;
        upload->written = first.size;
        channel_open(&upload->channel, id, &write_ops);
        return;
    }
    close(fd);
}

/* ---- stat, mkdir, rename ---- */

void request_stat(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint32_t options = take_u32(&reader);
    struct slice text = take_bytes(&reader), user = take_user(&reader);
    if (!reader_done(&reader) || options > 1)
        protocol_error("STAT");
    char path[PATH_MAX];
    struct stat st;
    if (!path_take(id, text, "path", path) || !act_as(id, user))
        return;
    if (fstatat(AT_FDCWD, path, &st, options ? 0 : AT_SYMLINK_NOFOLLOW) != 0) {
        path_error(id, "path", errno, path, NULL);
        return;
    }
    size_t end = text.size;
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    if (start == end)
        start = 0; /* the root is called "/" */
    uint8_t entry[ENTRY_HEAD + PATH_MAX];
    entry_head(entry, &st, end - start);
    memcpy(entry + ENTRY_HEAD, path + start, end - start);
    end_ok(id, entry, ENTRY_HEAD + end - start);
}

void request_mkdir(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint32_t mode = take_u32(&reader);
    struct slice text = take_bytes(&reader), user = take_user(&reader);
    if (!reader_done(&reader))
        protocol_error("MKDIR");
    char path[PATH_MAX];
    struct owner owner;
    if (!path_take(id, text, "path", path) || !act_as(id, user) || !owner_default(id, &owner))
        return;
    if (path_make_directory(path, mode & 07777, &owner) < 0)
        path_error(id, "path", errno, path, NULL);
    else
        end_ok(id, NULL, 0);
}

void request_rename(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    struct slice from = take_bytes(&reader), to = take_bytes(&reader), user = take_user(&reader);
    if (!reader_done(&reader))
        protocol_error("RENAME");
    char source[PATH_MAX], target[PATH_MAX];
    struct stat st;
    if (!path_take(id, from, "source", source) || !path_take(id, to, "target", target) || !act_as(id, user))
        return;
    if (rename(source, target) == 0) {
        end_ok(id, NULL, 0);
        return;
    }
    int errnum = errno;
    if (lstat(source, &st) != 0)
        path_error(id, "source", errno, source, NULL);
    else
        path_error(id, "target", errnum, target, NULL);
}
