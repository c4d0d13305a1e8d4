/* A command's output on its way to the host: credit, cap, head and tail.
 *
 * Bytes are read from the pipe straight into the send queue. Past the head, they go round in a tail buffer that is sent
 * when the command is over. A short read means an empty pipe, so no second one is spent to learn that. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "core.h"

enum {
    TAIL_LIMIT = 256 << 10,
    CHUNK = 64 << 10,
    PIPE_SIZE = 1 << 20,
    TURN_LIMIT = 1 << 20, /* of one stream, before others get their turn */
};
/* A command over within this time has caused no wake-up but its end. */
#define LATE_NS (3 * MILLISECOND_NS)

enum pump { PUMP_MORE, PUMP_EMPTY, PUMP_BLOCKED };

static uint8_t scratch[CHUNK];

static uint64_t head_left(const struct output *output) {
    uint64_t head = output->capture->limit - output->capture->tail_size;
    return output->total < head ? head - output->total : 0;
}

static void keep_tail(struct output *output, const uint8_t *data, size_t size) {
    size_t room = output->capture->tail_size;
    if (room && !output->tail)
        output->tail = malloc(room);
    if (!output->tail)
        return;
    if (size > room) {
        output->tail_total += size - room;
        data += size - room;
        size = room;
    }
    size_t at = (size_t)(output->tail_total % room);
    size_t first = size < room - at ? size : room - at;
    memcpy(output->tail + at, data, first);
    memcpy(output->tail, data + first, size - first);
    output->tail_total += size;
}

static ssize_t read_head(struct output *output, size_t *asked) {
    struct channel *channel = output->capture->channel;
    uint64_t left = head_left(output);
    *asked = left < WIRE_MAX_PAYLOAD ? (size_t)left : WIRE_MAX_PAYLOAD;
    if (*asked > channel->window)
        *asked = (size_t)channel->window;
    uint8_t *space = *asked ? send_reserve(asked) : NULL;
    if (!space) {
        *asked = 0;
        return 0;
    }
    ssize_t got = read(output->source.fd, space, *asked);
    if (got <= 0)
        return got;
    channel->window -= (uint64_t)got;
    stream_hold(channel->id, output->type, 0, (size_t)got);
    /* Held bytes use up credit: once it is gone only their delivery brings more. */
    if (output->capture->stream || !channel->window)
        stream_flush_soon();
    return got;
}

static ssize_t read_tail(struct output *output, size_t *asked) {
    *asked = CHUNK;
    ssize_t got = read(output->source.fd, scratch, CHUNK);
    if (got > 0)
        keep_tail(output, scratch, (size_t)got);
    return got;
}

static void check_limit(struct output *output) {
    struct capture *capture = output->capture;
    if (!capture->fatal || capture->over_called || output->total <= capture->limit)
        return;
    capture->over_called = true;
    capture->over(capture);
}

static enum pump pump(struct output *output) {
    size_t asked;
    ssize_t got = head_left(output) ? read_head(output, &asked) : read_tail(output, &asked);
    if (!asked)
        return PUMP_BLOCKED;
    if (got < 0 && errno == EINTR)
        return PUMP_MORE;
    if (got < 0 && errno == EAGAIN)
        return PUMP_EMPTY;
    output->unheld = got <= 0; /* every writer is gone (EIO: of a terminal) */
    if (output->unheld) {
        if (!output->terminal)
            source_close(&output->source);
        return PUMP_EMPTY;
    }
    output->total += (uint64_t)got;
    output->drained += (uint64_t)got;
    check_limit(output);
    if (!output->full_size && got >= CHUNK && !output->terminal) {
        output->full_size = true;
        fcntl(output->source.fd, F_SETPIPE_SZ, PIPE_SIZE);
    }
    return (size_t)got < asked && !output->terminal ? PUMP_EMPTY : PUMP_MORE;
}

/* A terminal stays open to the end: to close it would hang up on the command, which may have let go of it only to end,
 * or to open it again. Until then it says at every look that nobody holds it; seen once (EPOLLET), that is enough. */
static void pump_turn(struct output *output) {
    uint64_t until = output->total + TURN_LIMIT;
    enum pump result = PUMP_MORE;
    while (result == PUMP_MORE && output->source.fd >= 0 && output->total < until)
        result = pump(output);
    output->blocked = result == PUMP_BLOCKED;
    source_watch(&output->source, output->blocked ? 0 : output->unheld ? EPOLLIN | EPOLLET : EPOLLIN);
}

static void output_ready(struct source *source, uint32_t events) {
    pump_turn(source->owner);
}

/* Sends what the tail holds; false: credit or room is missing. */
static bool send_tail(struct output *output) {
    struct capture *capture = output->capture;
    size_t room = capture->tail_size;
    size_t kept = output->tail_total < room ? (size_t)output->tail_total : room;
    while (output->tail && output->tail_sent < kept) {
        uint64_t position = output->tail_total - kept + output->tail_sent;
        size_t at = (size_t)(position % room), size = kept - output->tail_sent;
        if (size > room - at)
            size = room - at;
        if (size > capture->channel->window)
            size = (size_t)capture->channel->window;
        uint8_t *space = size ? send_reserve(&size) : NULL;
        if (!space) {
            stream_flush_soon();
            return false;
        }
        memcpy(space, output->tail + at, size);
        bool gap = !output->tail_sent && output->total > capture->limit;
        stream_hold(capture->channel->id, output->type, gap ? WIRE_FLAG_GAP : 0, size);
        capture->channel->window -= size;
        output->tail_sent += size;
    }
    return true;
}

/* After the end: what was written by then is at most a pipe full, whoever still writes. */
static bool drain(struct output *output) {
    while (!output->empty) {
        if (output->source.fd < 0 || output->drained >= PIPE_SIZE) {
            output->empty = true;
            break;
        }
        enum pump result = pump(output);
        if (result == PUMP_BLOCKED)
            return false;
        output->empty = result == PUMP_EMPTY;
    }
    return send_tail(output);
}

static void late(struct timer *timer) {
    struct capture *capture = timer->owner;
    source_watch(&capture->out.source, EPOLLIN);
    source_watch(&capture->err.source, EPOLLIN);
}

void capture_open(struct capture *capture, struct channel *channel, uint32_t options, uint64_t limit) {
    capture->channel = channel;
    capture->limit = limit;
    capture->tail_size = limit / 2 < TAIL_LIMIT ? (size_t)(limit / 2) : TAIL_LIMIT;
    capture->stream = options & WIRE_OPT_STREAM;
    capture->fatal = options & WIRE_OPT_OUTPUT_FATAL;
    capture->late = (struct timer){.fire = late, .owner = capture};
    capture->out.source.fd = capture->err.source.fd = -1;
    capture->out.capture = capture->err.capture = capture;
    capture->out.type = WIRE_STDOUT;
    capture->err.type = WIRE_STDERR;
}

void capture_attach(struct output *output, int fd, bool terminal) {
    output->source = (struct source){.fd = fd, .ready = output_ready, .owner = output};
    output->terminal = terminal;
}

void capture_watch(struct capture *capture) {
    if (capture->stream)
        late(&capture->late);
    else
        timer_set(&capture->late, now_ns() + LATE_NS);
}

void capture_pull(struct capture *capture) {
    if (capture->ended) {
        if (capture_end(capture))
            capture->drained(capture);
        return;
    }
    if (capture->out.blocked)
        pump_turn(&capture->out);
    if (capture->err.blocked)
        pump_turn(&capture->err);
}

bool capture_end(struct capture *capture) {
    if (!capture->ended) {
        capture->ended = true;
        capture->out.drained = capture->err.drained = 0;
        timer_clear(&capture->late);
        source_watch(&capture->out.source, 0);
        source_watch(&capture->err.source, 0);
    }
    bool out_done = drain(&capture->out);
    return drain(&capture->err) && out_done;
}

static uint64_t omitted(const struct output *output) {
    uint64_t limit = output->capture->limit;
    return output->total > limit ? output->total - limit : 0;
}

uint64_t capture_omitted(const struct capture *capture) {
    return omitted(&capture->out) + omitted(&capture->err);
}

uint64_t capture_stderr_omitted(const struct capture *capture) {
    return omitted(&capture->err);
}

/* ---- survivors of a background command ---- */

static void discard_ready(struct source *source, uint32_t events) {
    ssize_t got = read(source->fd, scratch, CHUNK);
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    source_close(source);
    free(source);
}

static void go_on_discarding(struct source *source) {
    struct source *own = source->fd < 0 ? NULL : malloc(sizeof *own);
    if (!own)
        return;
    *own = (struct source){.fd = source->fd, .ready = discard_ready};
    source_watch(source, 0);
    source->fd = -1;
    source_watch(own, EPOLLIN);
}

void capture_close(struct capture *capture, bool keep_draining) {
    timer_clear(&capture->late);
    if (keep_draining) {
        go_on_discarding(&capture->out.source);
        go_on_discarding(&capture->err.source);
    }
    source_close(&capture->out.source);
    source_close(&capture->err.source);
    free(capture->out.tail);
    free(capture->err.tail);
    capture->out.tail = capture->err.tail = NULL;
}
