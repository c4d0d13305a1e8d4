/* Slots: what outlives one sandbox and is used again by the next: a range of host ids, and cgroups.
 *
 * Each live sandbox has ids of its own, so that per-user quotas of the kernel (pipe pages, inotify watches, pending
 * signals) are per sandbox. Owners on one machine share the ranges out in blocks. Each block is a byte of one file that
 * only root may open, and is claimed by a lock on that byte, which the kernel frees with its holder. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spawner.h"

enum {
    FIRST_HOST_ID = 0x70000000, /* above what subuid files and systemd's containers use */
    BLOCK = 64,
};

static struct slot slots[MAX_SANDBOXES];
static uint32_t slot_count, next_block, block_left, block_first;

static int claims_fd = -1, claims_error;

static int open_claims(const char *place) {
    int parent = open(place, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0)
        return -1;
    (void)!mkdirat(parent, "dutyfree-ids", 0700);
    int directory = openat(parent, "dutyfree-ids", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), claims = -1;
    struct stat st;
    if (directory >= 0 && fstat(directory, &st) == 0 && (st.st_uid != 0 || st.st_mode & 077))
        errno = EPERM; /* made by somebody else, who could take the file away */
    else if (directory >= 0)
        claims = openat(directory, "claims", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    int saved = errno;
    if (directory >= 0)
        close(directory);
    close(parent);
    errno = saved;
    return claims;
}

void slot_prepare(void) {
    if (geteuid() != 0)
        return;
    if ((claims_fd = open_claims("/run")) < 0)
        claims_fd = open_claims("/dev/shm"); /* in containers whose root is read-only */
    claims_error = errno;
}

static bool claim_block(uint32_t block) {
    struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = block, .l_len = 1};
    return fcntl(claims_fd, F_OFD_SETLK, &byte) == 0;
}

static bool fresh_range(uint32_t *first_id) {
    if (!powers.idmap) { /* one id is all we have */
        *first_id = 0;
        return true;
    }
    if (claims_fd < 0) {
        errno = claims_error;
        return false;
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
