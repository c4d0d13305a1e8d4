/* The tar format, as both directions need it: POSIX ustar blocks with pax records. */
#ifndef DUTYFREE_TAR_H
#define DUTYFREE_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum { TAR_BLOCK = 512 };

struct tar_block {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};
_Static_assert(sizeof(struct tar_block) == TAR_BLOCK, "a tar block is 512 bytes");

/* Bytes up to the next block boundary. */
static inline uint32_t tar_padding(uint64_t size) {
    return (uint32_t)(-size & (TAR_BLOCK - 1));
}

/* The sum of a header's bytes, its checksum field taken as blanks. */
uint32_t tar_checksum(const struct tar_block *block);

/* ---- tar_encode.c ---- */

struct tar_buffer {
    uint8_t *data;
    size_t size, capacity;
};

/* Appends one entry's header blocks: a pax header if ustar cannot say it all. `link` may be "". False: no memory. */
bool tar_encode(struct tar_buffer *out, char type, const char *name, const char *link, const struct stat *st);
/* Appends the two empty blocks that end an archive. */
bool tar_encode_end(struct tar_buffer *out);

/* ---- tar_decode.c ---- */

/* What the headers in front of an entry said of it. Strings are owned; NULL: not said. */
struct tar_said {
    char *path, *link;
    bool has_size, has_mtime;
    uint64_t size;
    struct timespec mtime;
};

struct tar_entry {
    char type;
    const char *name, *link; /* valid until the next header */
    uint64_t size;           /* of the content that follows */
    mode_t mode;
    struct timespec mtime;
};

struct tar_decoder {
    struct tar_said global, local;
    char name[257], link[101];
};

/* All return NULL or what is wrong with the archive, for people; *errnum is then set. */
const char *tar_decode_pax(struct tar_said *said, const char *text, size_t size, int *errnum);
const char *tar_decode_block(struct tar_decoder *decoder, const struct tar_block *block, struct tar_entry *entry,
                             int *errnum);
void tar_said_clear(struct tar_said *said);
bool tar_is_empty(const struct tar_block *block);

#endif
