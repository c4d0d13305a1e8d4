/* Owns the reading of tar headers: ustar and GNU blocks, pax records. Refuses what it would unpack wrongly (sparse
 * formats) and what could pass for overlayfs metadata in a layer. Everything here is hostile input. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tar.h"

void tar_said_clear(struct tar_said *said) {
    free(said->path);
    free(said->link);
    *said = (struct tar_said){0};
}

bool tar_is_empty(const struct tar_block *block) {
    const uint8_t *bytes = (const void *)block;
    for (size_t i = 0; i < TAR_BLOCK; i++)
        if (bytes[i])
            return false;
    return true;
}

/* Octal digits with blanks around, or GNU's base-256 (top bit set; negative numbers are refused). */
static bool get_number(const char *field, size_t width, uint64_t *out) {
    const uint8_t *at = (const uint8_t *)field, *end = at + width;
    uint64_t value = 0;
    if (*at & 0x80) {
        if (*at != 0x80)
            return false;
        for (at++; at < end; at++) {
            if (value >> 55)
                return false;
            value = value << 8 | *at;
        }
        *out = value;
        return true;
    }
    while (at < end && *at == ' ')
        at++;
    for (; at < end && *at >= '0' && *at <= '7'; at++) {
        if (value >> 60)
            return false;
        value = value << 3 | (uint64_t)(*at - '0');
    }
    *out = value;
    return at == end || *at == 0 || *at == ' ';
}

static bool get_decimal(const char **at, const char *end, uint64_t *out) {
    const char *start = *at;
    uint64_t value = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
        if (value > (UINT64_MAX >> 1) / 10 - 1)
            return false;
        value = value * 10 + (uint64_t)(**at - '0');
    }
    *out = value;
    return *at > start;
}

/* Seconds with a fraction, as pax writes times. */
static bool get_time(const char *at, const char *end, struct timespec *out) {
    bool negative = at < end && *at == '-';
    uint64_t seconds = 0;
    long nanoseconds = 0;
    at += negative;
    if (!get_decimal(&at, end, &seconds))
        return false;
    if (at < end && *at == '.') {
        long unit = 100000000;
        for (at++; at < end && *at >= '0' && *at <= '9'; at++, unit /= 10)
            nanoseconds += unit * (*at - '0');
    }
    out->tv_sec = negative ? -(time_t)seconds : (time_t)seconds;
    out->tv_nsec = nanoseconds;
    if (negative && nanoseconds > 0) {
        out->tv_sec--;
        out->tv_nsec = 1000000000 - nanoseconds;
    }
    return at == end;
}

static bool starts(const char *text, size_t size, const char *prefix) {
    size_t length = strlen(prefix);
    return size >= length && memcmp(text, prefix, length) == 0;
}

static const char *set_text(char **field, const char *value, size_t size, int *errnum) {
    free(*field);
    *field = NULL;
    if (memchr(value, 0, size))
        return "a name holds a NUL byte";
    if (size > 0 && !(*field = strndup(value, size))) {
        *errnum = ENOMEM;
        return "no memory for a name";
    }
    return NULL;
}

static const char *apply_record(struct tar_said *said, const char *key, size_t key_size, const char *value, size_t size,
                                int *errnum) {
    static const char *const xattr[] = {"SCHILY.xattr.", "LIBARCHIVE.xattr."};
    const char *end = value + size;
    if (key_size == 4 && starts(key, key_size, "path"))
        return set_text(&said->path, value, size, errnum);
    if (key_size == 8 && starts(key, key_size, "linkpath"))
        return set_text(&said->link, value, size, errnum);
    if (key_size == 4 && starts(key, key_size, "size")) {
        said->has_size = size > 0;
        return size == 0 || (get_decimal(&value, end, &said->size) && value == end) ? NULL : "bad pax size";
    }
    if (key_size == 5 && starts(key, key_size, "mtime")) {
        said->has_mtime = size > 0;
        return size == 0 || get_time(value, end, &said->mtime) ? NULL : "bad pax mtime";
    }
    if (starts(key, key_size, "GNU.sparse.")) {
        *errnum = ENOTSUP;
        return "sparse tar formats are not supported";
    }
    for (size_t i = 0; i < 2; i++) {
        size_t skip = strlen(xattr[i]);
        if (starts(key, key_size, xattr[i]) && (starts(key + skip, key_size - skip, "trusted.overlay.") ||
                                                starts(key + skip, key_size - skip, "user.overlay."))) {
            *errnum = EPERM;
            return "overlay attributes are refused";
        }
    }
    return NULL; /* owners, comments, other attributes: not ours to keep */
}

const char *tar_decode_pax(struct tar_said *said, const char *text, size_t size, int *errnum) {
    const char *end = text + size;
    *errnum = EINVAL;
    while (text < end) {
        const char *at = text;
        uint64_t length;
        if (!get_decimal(&at, end, &length) || length > (uint64_t)(end - text) || at == end || *at != ' ')
            return "bad pax record length";
        const char *record_end = text + length, *key = at + 1;
        if (record_end <= key || record_end[-1] != '\n')
            return "bad pax record";
        const char *equals = memchr(key, '=', (size_t)(record_end - key));
        if (!equals)
            return "bad pax record";
        const char *wrong = apply_record(said, key, (size_t)(equals - key), equals + 1,
                                         (size_t)(record_end - 1 - (equals + 1)), errnum);
        if (wrong)
            return wrong;
        text = record_end;
    }
    return NULL;
}

static const char *block_name(struct tar_decoder *decoder, const struct tar_block *block) {
    size_t prefix = 0, name = strnlen(block->name, sizeof block->name);
    if (memcmp(block->magic, "ustar", 6) == 0) /* GNU's magic ends in blanks, and its prefix field holds times */
        prefix = strnlen(block->prefix, sizeof block->prefix);
    memcpy(decoder->name, block->prefix, prefix);
    if (prefix > 0)
        decoder->name[prefix++] = '/';
    memcpy(decoder->name + prefix, block->name, name);
    decoder->name[prefix + name] = 0;
    return decoder->name;
}

static char entry_type(char type, const char *name) {
    size_t size = strlen(name);
    if (type != 0 && type != '0' && type != '7')
        return type;
    return size > 0 && name[size - 1] == '/' ? '5' : '0'; /* before POSIX a directory was a file with a slash */
}

const char *tar_decode_block(struct tar_decoder *decoder, const struct tar_block *block, struct tar_entry *entry,
                             int *errnum) {
    const struct tar_said *local = &decoder->local, *global = &decoder->global;
    uint64_t checksum, mode, mtime = 0;
    *errnum = EINVAL;
    if (!get_number(block->checksum, sizeof block->checksum, &checksum) || checksum != tar_checksum(block))
        return "bad header checksum";
    if (!get_number(block->size, sizeof block->size, &entry->size))
        return "bad size";
    if (!get_number(block->mode, sizeof block->mode, &mode))
        return "bad mode";
    bool has_mtime = get_number(block->mtime, sizeof block->mtime, &mtime) && mtime <= INT64_MAX;
    entry->mtime = (struct timespec){.tv_sec = has_mtime ? (time_t)mtime : 0};
    entry->mode = (mode_t)(mode & 07777);
    size_t link = strnlen(block->link, sizeof block->link);
    memcpy(decoder->link, block->link, link);
    decoder->link[link] = 0;
    block_name(decoder, block);
    entry->name = local->path ? local->path : global->path ? global->path : decoder->name;
    entry->link = local->link ? local->link : global->link ? global->link : decoder->link;
    entry->type = entry_type(block->type, entry->name);
    if (strchr("xgLK", block->type) && block->type)
        return NULL; /* what was said is of the entry they precede, not of them */
    if (local->has_size || global->has_size)
        entry->size = local->has_size ? local->size : global->size;
    if (local->has_mtime || global->has_mtime)
        entry->mtime = local->has_mtime ? local->mtime : global->mtime;
    return NULL;
}
