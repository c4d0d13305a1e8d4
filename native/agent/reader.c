/* Decoding of request payloads. Nothing here reads past the end, whatever the host sent. */
#include <stdlib.h>
#include <string.h>

#include "agent.h"

struct reader reader_of(const uint8_t *data, size_t size) {
    return (struct reader){.at = data, .end = data + size};
}

static const uint8_t *take(struct reader *reader, size_t size) {
    if (reader->bad || (size_t)(reader->end - reader->at) < size) {
        reader->bad = true;
        return NULL;
    }
    const uint8_t *at = reader->at;
    reader->at += size;
    return at;
}

static uint64_t take_number(struct reader *reader, size_t size) {
    const uint8_t *at = take(reader, size);
    uint64_t value = 0;
    for (size_t i = size; at && i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

uint16_t take_u16(struct reader *reader) {
    return (uint16_t)take_number(reader, 2);
}

uint32_t take_u32(struct reader *reader) {
    return (uint32_t)take_number(reader, 4);
}

uint64_t take_u64(struct reader *reader) {
    return take_number(reader, 8);
}

struct slice take_bytes(struct reader *reader) {
    size_t size = take_u32(reader);
    const uint8_t *data = take(reader, size);
    return data ? (struct slice){data, size} : (struct slice){(const uint8_t *)"", 0};
}

char *take_string(struct reader *reader, size_t max) {
    struct slice slice = take_bytes(reader);
    if (reader->bad || slice.size > max || memchr(slice.data, 0, slice.size)) {
        reader->bad = true;
        return NULL;
    }
    char *text = malloc(slice.size + 1);
    if (!text) {
        reader->bad = true;
        return NULL;
    }
    memcpy(text, slice.data, slice.size);
    text[slice.size] = 0;
    return text;
}

char **take_list(struct reader *reader, size_t max_items) {
    size_t count = take_u32(reader);
    /* Each item takes at least its length field, so the count is bounded by the bytes that are there. */
    if (reader->bad || count > max_items || count > (size_t)(reader->end - reader->at) / 4) {
        reader->bad = true;
        return NULL;
    }
    size_t pointers = (count + 1) * sizeof(char *);
    char **list = malloc(pointers + (size_t)(reader->end - reader->at) + 1);
    if (!list) {
        reader->bad = true;
        return NULL;
    }
    char *text = (char *)list + pointers;
    for (size_t i = 0; i < count; i++) {
        struct slice slice = take_bytes(reader);
        if (reader->bad || memchr(slice.data, 0, slice.size)) {
            reader->bad = true;
            free(list);
            return NULL;
        }
        list[i] = text;
        memcpy(text, slice.data, slice.size);
        text += slice.size;
        *text++ = 0;
    }
    list[count] = NULL;
    return list;
}

bool reader_done(const struct reader *reader) {
    return !reader->bad && reader->at == reader->end;
}
