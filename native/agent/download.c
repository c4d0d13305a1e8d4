/* Owns what READ, LIST and TAR_OUT share: credit, turns, the end by CANCEL. A download that has had its turn goes on
 * after all other events (`again`); one that found the queue full waits in line, whichever of them is pulled. */
#include <errno.h>

#include "file.h"

enum { QUANTUM = 256 << 10 }; /* of one turn, and the largest DATA frame */

static struct download *line; /* waiting for room, the longest first */

static void enter_line(struct download *download) {
    struct download **link = &line;
    while (*link)
        link = &(*link)->behind;
    *link = download;
    download->behind = NULL;
    download->in_line = true;
}

static void leave_line(struct download *download) {
    struct download **link = &line;
    while (*link != download)
        link = &(*link)->behind;
    *link = download->behind;
    download->in_line = false;
}

static void again(struct timer *timer) {
    struct download *download = timer->owner;
    download->channel.ops->pull(&download->channel);
}

void download_open(struct download *download, uint32_t id, const struct channel_ops *ops, uint64_t window) {
    download->again = (struct timer){.fire = again, .owner = download};
    channel_open(&download->channel, id, ops);
    download->channel.window = window;
    ops->pull(&download->channel);
}

bool download_turn(struct download *download) {
    if (download->again.at_ns)
        return false;
    /* Those that have waited longer come first. send_room sees to it that we are pulled again if there is none. */
    while (download->in_line) {
        struct download *first = line;
        if (send_room() == 0)
            return false;
        leave_line(first);
        if (first != download)
            first->channel.ops->pull(&first->channel);
    }
    download->turn_left = QUANTUM;
    return true;
}

uint8_t *download_space(struct download *download, size_t wanted, size_t *room) {
    uint64_t window = download->channel.window;
    size_t most = window < wanted ? (size_t)window : wanted;
    if (most == 0)
        return NULL;
    if (download->turn_left == 0) {
        timer_set(&download->again, now_ns()); /* behind those that wait already */
        return NULL;
    }
    *room = most < QUANTUM ? most : QUANTUM; /* a turn may end a little late, so that no frame is cut for it */
    uint8_t *space = send_reserve(room);
    if (!space)
        enter_line(download);
    return space;
}

void download_commit(struct download *download, size_t size) {
    send_commit(download->channel.id, WIRE_DATA, 0, size);
    download->channel.window -= size;
    download->turn_left -= size < download->turn_left ? size : download->turn_left;
}

void download_close(struct download *download) {
    timer_clear(&download->again);
    if (download->in_line)
        leave_line(download);
}

void download_frame(struct channel *channel, uint8_t type, uint8_t flags, const uint8_t *data, size_t size) {
    if (type != WIRE_CANCEL || size != 0)
        protocol_error("unexpected frame on a download");
    end_error(channel->id, ECANCELED, "cancel", "cancelled by the host");
}
