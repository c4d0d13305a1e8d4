/* Slots: what outlives one sandbox and is used again by the next: a range of host ids, and cgroups.
 *
 * Each live sandbox has ids of its own, so that per-user quotas of the kernel (pipe pages, inotify watches, pending
 * signals) are per sandbox. Owners on one machine share the ranges out in blocks, each claimed by binding an abstract
 * unix name, which the kernel frees with its holder. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "spawner.h"

enum {
    FIRST_HOST_ID = 0x70000000, /* above what subuid files and systemd's containers use */
    BLOCK = 64,
};

static struct slot slots[MAX_SANDBOXES];
static uint32_t slot_count, next_block, block_left, block_first;

static bool claim_block(uint32_t block) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int size = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "dutyfree-ids-%u", block);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    if (bind(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)size)) == 0)
        return true; /* kept open for our lifetime */
    close(fd);
    return false;
}

static bool fresh_range(uint32_t *first_id) {
    if (!powers.idmap) { /* one id is all we have */
        *first_id = 0;
        return true;
    }
    while (block_left == 0) {
        if (next_block == MAX_SANDBOXES / BLOCK - 1) { /* the last block would pass 2^31 */
            errno = EUSERS;
            return false;
        }
        if (claim_block(next_block)) {
            block_first = FIRST_HOST_ID + next_block * BLOCK * RANGE_SIZE;
            block_left = BLOCK;
        }
        next_block++;
    }
    *first_id = block_first + (BLOCK - block_left) * RANGE_SIZE;
    block_left--;
    return true;
}

struct slot *slot_take(void) {
    for (uint32_t i = 0; i < slot_count; i++) {
        if (!slots[i].in_use) {
            slots[i].in_use = true;
            return &slots[i];
        }
    }
    if (slot_count == MAX_SANDBOXES) {
        errno = EUSERS;
        return NULL;
    }
    struct slot *slot = &slots[slot_count];
    *slot = (struct slot){.number = slot_count, .in_use = true};
    if (!fresh_range(&slot->first_id) || !cgroup_make(&slot->cgroup, slot->number))
        return NULL;
    slot_count++;
    return slot;
}

void slot_put(struct slot *slot) {
    slot->in_use = false;
}
