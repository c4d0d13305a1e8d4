/* Owns the writing of tar headers. Names and times that ustar cannot hold exactly go into a pax header in front. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tar.h"

static const uint64_t octal_limit = 1ull << 33; /* what eleven octal digits hold */
enum { ID_LIMIT = 1 << 21 };                    /* and seven */

static uint8_t *grow(struct tar_buffer *out, size_t size) {
    if (out->capacity - out->size < size) {
        size_t capacity = (out->size + size) * 2;
        uint8_t *data = realloc(out->data, capacity);
        if (!data)
            return NULL;
        out->data = data;
        out->capacity = capacity;
    }
    uint8_t *space = out->data + out->size;
    memset(space, 0, size);
    out->size += size;
    return space;
}

uint32_t tar_checksum(const struct tar_block *block) {
    const uint8_t *bytes = (const void *)block;
    size_t field = offsetof(struct tar_block, checksum);
    uint32_t sum = 0;
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += i >= field && i < field + sizeof block->checksum ? ' ' : bytes[i];
    return sum;
}

/* A field that cannot hold the value says 0; a pax record then says it. */
static void put_octal(char *field, size_t width, uint64_t value, uint64_t limit) {
    char text[24];
    snprintf(text, sizeof text, "%0*llo", (int)width - 1, value < limit ? (unsigned long long)value : 0ull);
    memcpy(field, text, width);
}

static void fill_block(struct tar_block *block, char type, const char *name, const char *link, uint64_t size,
                       const struct stat *st) {
    memcpy(block->name, name, strnlen(name, sizeof block->name));
    memcpy(block->link, link, strnlen(link, sizeof block->link));
    put_octal(block->mode, sizeof block->mode, st->st_mode & 07777, ID_LIMIT);
    put_octal(block->uid, sizeof block->uid, st->st_uid, ID_LIMIT);
    put_octal(block->gid, sizeof block->gid, st->st_gid, ID_LIMIT);
    put_octal(block->size, sizeof block->size, size, octal_limit);
    put_octal(block->mtime, sizeof block->mtime, (uint64_t)st->st_mtim.tv_sec, octal_limit);
    block->type = type;
    memcpy(block->magic, "ustar", 6);
    memcpy(block->version, "00", 2);
    put_octal(block->checksum, sizeof block->checksum - 1, tar_checksum(block), ID_LIMIT);
    block->checksum[7] = ' ';
}

/* "length key=value\n", where the length counts its own digits. */
static bool put_record(struct tar_buffer *out, const char *key, const char *value) {
    size_t body = strlen(key) + strlen(value) + 3, total = body + 1;
    for (size_t digits = 1;; digits++) {
        char text[24];
        total = body + digits;
        if ((size_t)snprintf(text, sizeof text, "%zu", total) <= digits)
            break;
    }
    uint8_t *space = grow(out, total + 1);
    if (!space)
        return false;
    snprintf((char *)space, total + 1, "%zu %s=%s\n", total, key, value);
    out->size--; /* the NUL */
    return true;
}

static bool is_utf8(const uint8_t *text) {
    while (*text) {
        uint8_t lead = *text++;
        int more = lead < 0x80 ? 0 : lead >= 0xc2 && lead < 0xe0 ? 1 : (lead & 0xf0) == 0xe0 ? 2 : lead < 0xf5 ? 3 : -1;
        if (more < 0 || (lead >= 0x80 && lead < 0xc2))
            return false;
        if ((lead == 0xe0 && *text < 0xa0) || (lead == 0xed && *text > 0x9f) || (lead == 0xf0 && *text < 0x90) ||
            (lead == 0xf4 && *text > 0x8f))
            return false;
        for (; more > 0; more--)
            if ((*text++ & 0xc0) != 0x80)
                return false;
    }
    return true;
}

static bool is_plain(const char *text) {
    size_t size = 0;
    for (; text[size]; size++)
        if ((unsigned char)text[size] >= 0x80)
            return false;
    return size <= 100;
}

static bool put_number(struct tar_buffer *out, const char *key, uint64_t value, uint64_t limit) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return value < limit || put_record(out, key, text);
}

static bool put_time(struct tar_buffer *out, const struct timespec *time) {
    char text[48];
    long long seconds = time->tv_sec;
    long nanoseconds = time->tv_nsec;
    bool negative = seconds < 0;
    if (!negative && nanoseconds == 0 && (uint64_t)seconds < octal_limit)
        return true;
    if (negative && nanoseconds > 0) { /* tv_nsec counts upwards from the second before */
        seconds++;
        nanoseconds = 1000000000 - nanoseconds;
    }
    snprintf(text, sizeof text, "%s%llu.%09ld", negative ? "-" : "",
             negative ? 0ull - (unsigned long long)seconds : (unsigned long long)seconds, nanoseconds);
    return put_record(out, "mtime", text);
}

static bool put_records(struct tar_buffer *out, const char *name, const char *link, uint64_t size,
                        const struct stat *st) {
    if ((!is_utf8((const uint8_t *)name) || !is_utf8((const uint8_t *)link)) &&
        !put_record(out, "hdrcharset", "BINARY"))
        return false;
    return (is_plain(name) || put_record(out, "path", name)) && (is_plain(link) || put_record(out, "linkpath", link)) &&
           put_number(out, "size", size, octal_limit) && put_number(out, "uid", st->st_uid, ID_LIMIT) &&
           put_number(out, "gid", st->st_gid, ID_LIMIT) && put_time(out, &st->st_mtim);
}

bool tar_encode(struct tar_buffer *out, char type, const char *name, const char *link, const struct stat *st) {
    uint64_t size = type == '0' ? (uint64_t)st->st_size : 0;
    size_t pax = out->size;
    if (!grow(out, TAR_BLOCK) || !put_records(out, name, link, size, st))
        return false;
    size_t records = out->size - pax - TAR_BLOCK;
    if (records > 0) {
        struct stat plain = {.st_mode = 0644};
        fill_block((void *)(out->data + pax), 'x', "././@PaxHeader", "", records, &plain);
        if (!grow(out, tar_padding(records)))
            return false;
    } else {
        out->size = pax;
    }
    struct tar_block *block = (void *)grow(out, TAR_BLOCK);
    if (block)
        fill_block(block, type, name, link, size, st);
    return block != NULL;
}

bool tar_encode_end(struct tar_buffer *out) {
    return grow(out, 2 * TAR_BLOCK) != NULL;
}
