/* Owns directory listings. A listing holds one getdents64 buffer, never the directory,
 * so a million entries cost the agent what a hundred do. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "file.h"
#include "path.h"

enum {
    PIECE = 64 << 10, /* an entry costs a stat: smaller frames than those of files */
    LIST_BUFFER = 32 << 10,
};

void entry_head(uint8_t out[ENTRY_HEAD], const struct stat *st, size_t name_size) {
    put_u32(out, st->st_mode);
    put_u32(out + 4, st->st_uid);
    put_u32(out + 8, st->st_gid);
    put_u64(out + 12, (uint64_t)st->st_size);
    put_u64(out + 20, (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec);
    put_u32(out + 28, (uint32_t)name_size);
}

struct listing {
    struct download download;
    int fd;
    size_t at, filled;
    const struct dirent64 *next; /* found and not sent yet */
    struct stat st;              /* of `next` */
    _Alignas(struct dirent64) char buffer[LIST_BUFFER];
};

/* Finds the next entry that still exists; NULL at the end. Returns 0 or an errno. */
static int list_advance(struct listing *listing) {
    listing->next = NULL;
    for (;;) {
        if (listing->at == listing->filled) {
            ssize_t got = getdents64(listing->fd, listing->buffer, LIST_BUFFER);
            if (got <= 0) /* ENOENT: the directory has been removed meanwhile */
                return got < 0 && errno != ENOENT ? errno : 0;
            listing->at = 0;
            listing->filled = (size_t)got;
        }
        const struct dirent64 *entry = (const void *)(listing->buffer + listing->at);
        listing->at += entry->d_reclen;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (fstatat(listing->fd, entry->d_name, &listing->st, AT_SYMLINK_NOFOLLOW) == 0) {
            listing->next = entry;
            return 0;
        }
    }
}

/* Fills `space` with whole entries; *used tells how much of it. Returns 0 or an errno. */
static int list_fill(struct listing *listing, uint8_t *space, size_t room, size_t *used) {
    int error = 0;
    *used = 0;
    while (listing->next && !error) {
        size_t name_size = strlen(listing->next->d_name);
        if (room - *used < ENTRY_HEAD + name_size)
            break;
        entry_head(space + *used, &listing->st, name_size);
        memcpy(space + *used + ENTRY_HEAD, listing->next->d_name, name_size);
        *used += ENTRY_HEAD + name_size;
        error = list_advance(listing);
    }
    return error;
}

static void list_pull(struct channel *channel) {
    struct listing *listing = (struct listing *)channel;
    struct download *download = &listing->download;
    if (!download_turn(download))
        return;
    while (listing->next) {
        size_t room, used;
        uint8_t *space = download_space(download, PIECE, &room);
        if (!space)
            return;
        int error = list_fill(listing, space, room, &used);
        if (used > 0)
            download_commit(download, used);
        if (error) {
            end_error(channel->id, error, "list", strerror(error));
            return;
        }
        if (used == 0)
            return; /* less room or credit than one entry takes */
    }
    end_ok(channel->id, NULL, 0);
}

static void list_close(struct channel *channel) {
    struct listing *listing = (struct listing *)channel;
    download_close(&listing->download);
    close(listing->fd);
    free(listing);
}

static const struct channel_ops list_ops = {.frame = download_frame, .pull = list_pull, .close = list_close};

void request_list(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint64_t window = take_u64(&reader);
    struct slice text = take_bytes(&reader), user = take_user(&reader);
    if (!reader_done(&reader))
        protocol_error("LIST");
    char path[PATH_MAX];
    if (!path_take(id, text, "path", path) || !act_as(id, user))
        return;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        path_error(id, "path", errno, path, NULL);
        return;
    }
    struct listing *listing = calloc(1, sizeof *listing);
    if (!listing) {
        end_error(id, ENOMEM, "list", strerror(ENOMEM));
        close(fd);
        return;
    }
    listing->fd = fd;
    int error = list_advance(listing);
    if (error) {
        path_error(id, "path", error, path, NULL);
        close(fd);
        free(listing);
        return;
    }
    download_open(&listing->download, id, &list_ops, window);
}
