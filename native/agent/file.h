/* What the file rooms share: the frames every download takes, and the entry format. */
#ifndef DUTYFREE_FILE_H
#define DUTYFREE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "agent.h"

enum { ENTRY_HEAD = 32 }; /* bytes of an entry before its name */

static inline void put_u32(uint8_t *out, uint32_t value) {
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static inline void put_u64(uint8_t *out, uint64_t value) {
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static inline void end_u64(uint32_t id, uint64_t value) {
    uint8_t payload[8];
    put_u64(payload, value);
    end_ok(id, payload, sizeof payload);
}

/* Everything of an entry but the name itself. */
void entry_head(uint8_t out[ENTRY_HEAD], const struct stat *st, size_t name_size);

/* A channel that only sends, embedded at the start of its owner. It sends a quantum at a time and then lets the others
 * have their turn, so that downloads of any size share the stream. */
struct download {
    struct channel channel;
    struct timer again; /* set: the next turn comes by itself */
    size_t turn_left;
    bool in_line;            /* the queue was full */
    struct download *behind; /* in that line */
};

/* Opens the channel and takes the first turn. */
void download_open(struct download *download, uint32_t id, const struct channel_ops *ops, uint64_t window);
/* Opens each pull; false: it is not this one's turn. */
bool download_turn(struct download *download);
/* Space for DATA in the stream's queue: at most `wanted`, the window and a quantum. NULL: return, and
 * wait for pull. */
uint8_t *download_space(struct download *download, size_t wanted, size_t *room);
void download_commit(struct download *download, size_t size);
/* Part of each close. */
void download_close(struct download *download);
/* The frame handler: CANCEL ends it, all else is a breach. */
void download_frame(struct channel *channel, uint8_t type, uint8_t flags, const uint8_t *data, size_t size);

/* write(2) until everything is written; false with errno. */
bool write_all(int fd, const uint8_t *data, size_t size);

#endif
