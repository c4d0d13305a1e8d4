/* Owns TAR_IN: takes a tar stream in pieces of any size and hands its entries to unpack.c. Holds one header and one
 * extended header (at most EXTENDED_LIMIT) at a time, never a file. Refuses a stream without its end mark: cut at an
 * entry's boundary it would look whole. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "path.h"
#include "tar.h"
#include "unpack.h"

enum { EXTENDED_LIMIT = 1 << 20 };

enum tar_state { IN_BLOCK, IN_EXTENDED, IN_CONTENT, IN_PADDING, IN_REST };

struct tar_in {
    struct channel channel;
    enum tar_state state;
    uint64_t offset; /* bytes taken so far */
    uint64_t entries;
    struct tar_block block;
    size_t filled; /* of `block` or `extended` */
    char *extended;
    char extended_type; /* x, g: pax; L, K: GNU long name and link */
    uint64_t left;      /* of an extended header or of content; then, of padding */
    uint32_t padding;
    int fd; /* the file being written; -1: none, its content is skipped */
    struct timespec mtime;
    struct tar_decoder decoder;
    struct unpack unpack;
};

/* ---- failing: false, with the channel ended ---- */

static bool bad_archive(struct tar_in *tar, int errnum, const char *reason) {
    char detail[256];
    snprintf(detail, sizeof detail, "at byte %llu of the archive: %s", (unsigned long long)tar->offset, reason);
    end_error(tar->channel.id, errnum, "tar", detail);
    return false;
}

static bool bad_entry(struct tar_in *tar, int errnum, const char *name, const char *reason) {
    char detail[PATH_MAX + 256];
    snprintf(detail, sizeof detail, "%.4095s: %s (at byte %llu of the archive)", name,
             reason ? reason : strerror(errnum), (unsigned long long)tar->offset);
    end_error(tar->channel.id, errnum, "entry", detail);
    return false;
}

/* ---- parts of the stream ---- */

static void skip_padding(struct tar_in *tar) {
    tar->left = tar->padding;
    tar->state = tar->left ? IN_PADDING : IN_BLOCK;
    tar->filled = 0;
}

static bool begin_extended(struct tar_in *tar, const struct tar_entry *entry) {
    if (entry->size > EXTENDED_LIMIT)
        return bad_archive(tar, EINVAL, "an extended header is larger than 1 MiB");
    tar->extended_type = entry->type;
    tar->left = entry->size;
    tar->filled = 0;
    if (!(tar->extended = malloc(entry->size + 1)))
        return bad_archive(tar, ENOMEM, "no memory for an extended header");
    tar->state = IN_EXTENDED;
    return true;
}

static bool end_extended(struct tar_in *tar) {
    struct tar_decoder *decoder = &tar->decoder;
    int errnum = ENOMEM;
    const char *wrong = NULL;
    tar->extended[tar->filled] = 0;
    if (tar->extended_type == 'x' || tar->extended_type == 'g') {
        wrong = tar_decode_pax(tar->extended_type == 'x' ? &decoder->local : &decoder->global, tar->extended,
                               tar->filled, &errnum);
        free(tar->extended);
    } else {
        char **field = tar->extended_type == 'L' ? &decoder->local.path : &decoder->local.link;
        free(*field);
        *field = tar->extended; /* up to its first NUL */
    }
    tar->extended = NULL;
    skip_padding(tar);
    return wrong ? bad_archive(tar, errnum, wrong) : true;
}

static bool end_content(struct tar_in *tar) {
    int error = tar->fd >= 0 ? unpack_finish_file(tar->fd, &tar->mtime) : 0;
    tar->fd = -1;
    skip_padding(tar);
    return error ? bad_archive(tar, error, "cannot set a file's time") : true;
}

static bool begin_entry(struct tar_in *tar, const struct tar_entry *entry) {
    bool is_label = entry->type == 'V'; /* GNU's name for the archive as a whole */
    bool has_content = entry->type == '0';
    int error = is_label ? 0 : unpack_entry(&tar->unpack, entry, &tar->fd);
    if (error)
        return bad_entry(tar, error, entry->name, tar->unpack.reason);
    tar->entries += !is_label;
    tar->mtime = entry->mtime;
    tar->left = has_content ? entry->size : 0;
    tar->padding = tar_padding(tar->left);
    tar_said_clear(&tar->decoder.local); /* `entry` points into it: not used from here on */
    tar->state = IN_CONTENT;
    return tar->left > 0 || end_content(tar);
}

static bool end_block(struct tar_in *tar) {
    struct tar_entry entry;
    int errnum;
    tar->filled = 0;
    if (tar_is_empty(&tar->block)) {
        tar->state = IN_REST;
        return true;
    }
    const char *wrong = tar_decode_block(&tar->decoder, &tar->block, &entry, &errnum);
    if (wrong)
        return bad_archive(tar, errnum, wrong);
    if (tar->block.type && strchr("xgLK", tar->block.type)) {
        tar->padding = tar_padding(entry.size);
        return begin_extended(tar, &entry) && (tar->left > 0 || end_extended(tar));
    }
    return begin_entry(tar, &entry);
}

/* ---- pieces as they come ---- */

/* Takes some of `data`; *taken tells how much. False: the channel has ended. */
static bool take_some(struct tar_in *tar, const uint8_t *data, size_t size, size_t *taken) {
    uint64_t wanted = tar->state == IN_BLOCK ? TAR_BLOCK - tar->filled : tar->state == IN_REST ? size : tar->left;
    size_t most = wanted < size ? (size_t)wanted : size;
    if (tar->state == IN_BLOCK)
        memcpy((char *)&tar->block + tar->filled, data, most);
    else if (tar->state == IN_EXTENDED)
        memcpy(tar->extended + tar->filled, data, most);
    else if (tar->state == IN_CONTENT && tar->fd >= 0 && !write_all(tar->fd, data, most))
        return bad_archive(tar, errno, strerror(errno));
    *taken = most;
    tar->offset += most;
    if (tar->state == IN_REST)
        return true;
    tar->filled += most;
    if (tar->state == IN_BLOCK)
        return tar->filled < TAR_BLOCK || end_block(tar);
    tar->left -= most;
    if (tar->left > 0)
        return true;
    if (tar->state == IN_EXTENDED)
        return end_extended(tar);
    if (tar->state == IN_CONTENT)
        return end_content(tar);
    tar->padding = 0;
    skip_padding(tar);
    return true;
}

static void tar_in_frame(struct channel *channel, uint8_t type, uint8_t flags, const uint8_t *data, size_t size) {
    struct tar_in *tar = (struct tar_in *)channel;
    if (type == WIRE_CANCEL && size == 0) {
        end_error(channel->id, ECANCELED, "tar", "cancelled: unpacked in part");
        return;
    }
    if (type != WIRE_DATA)
        protocol_error("unexpected frame on a TAR_IN channel");
    while (size > 0) {
        size_t taken;
        if (!take_some(tar, data, size, &taken))
            return;
        data += taken;
        size -= taken;
    }
    if (!(flags & WIRE_FLAG_END))
        return;
    int error = tar->state == IN_REST ? unpack_finish(&tar->unpack) : 0;
    if (tar->state != IN_REST)
        bad_archive(tar, EINVAL, "the archive ends too early");
    else if (error)
        bad_archive(tar, error, strerror(error));
    else
        end_u64(channel->id, tar->entries);
}

static void tar_in_close(struct channel *channel) {
    struct tar_in *tar = (struct tar_in *)channel;
    if (tar->fd >= 0)
        unpack_finish_file(tar->fd, &tar->mtime);
    tar_said_clear(&tar->decoder.local);
    tar_said_clear(&tar->decoder.global);
    free(tar->extended);
    unpack_close(&tar->unpack);
    free(tar);
}

static const struct channel_ops tar_in_ops = {.frame = tar_in_frame, .close = tar_in_close};

void request_tar_in(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint32_t options = take_u32(&reader);
    struct slice text = take_bytes(&reader);
    if (!reader_done(&reader) || options != 0)
        protocol_error("TAR_IN");
    char path[PATH_MAX];
    struct owner owner;
    if (!path_take(id, text, "path", path) || !owner_default(id, &owner))
        return;
    struct tar_in *tar = calloc(1, sizeof *tar);
    if (!tar) {
        end_error(id, ENOMEM, "tar", strerror(ENOMEM));
        return;
    }
    tar->fd = -1;
    int error = unpack_start(&tar->unpack, path, &owner);
    channel_open(&tar->channel, id, &tar_in_ops);
    if (error)
        path_error(id, "path", error, path, NULL);
}
