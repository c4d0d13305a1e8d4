/* The stream to the host: a queue of frames out, a buffer of frames in.
 *
 * The queue takes bulk up to QUEUE_BULK and control frames always; while more than QUEUE_PAUSE waits, nothing is read
 * from the host, so a host that asks and never listens cannot make us grow. Output of short commands is held until
 * something has to leave, so that it costs the host one wake-up. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

enum {
    QUEUE_BULK = 1 << 20,
    QUEUE_PAUSE = 2 << 20,
    QUEUE_SIZE = 12 << 20, /* reserved, not touched; a paused input leaves the rest unreachable */
    QUEUE_HOLD = 64 << 10,
    INPUT_SIZE = 8 << 20, /* as the queue */
    KEEP = 64 << 10,      /* memory kept while idle, of each buffer */
    MERGE_LIMIT = 4096,
};

static struct source in, out;
static uint8_t *queue, *input;
static size_t head, tail;          /* of the queue */
static size_t last_frame;          /* offset of the newest frame's header */
static bool last_open;             /* it is an output frame that may still grow */
static size_t input_at, input_end; /* unparsed bytes */
static size_t queue_touched, input_touched;
static bool flush_wanted, starved, paused;

static size_t pending(void) {
    return tail - head;
}

static void put_u32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t get_u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void put_header(size_t at, uint32_t size, uint32_t channel, uint8_t type, uint8_t flags) {
    put_u32(queue + at, size);
    put_u32(queue + at + 4, channel);
    queue[at + 8] = type;
    queue[at + 9] = flags;
    queue[at + 10] = queue[at + 11] = 0;
}

/* Makes `size` bytes contiguous at the tail. */
static void make_space(size_t size) {
    if (head == tail) {
        head = tail = 0;
        last_open = false;
    }
    /* Moving only when at least as much has been sent as is moved keeps the cost below one copy per byte. */
    bool worth = head >= pending() && tail + size > 2 * (size_t)QUEUE_BULK;
    if (worth || tail + size > QUEUE_SIZE) {
        memmove(queue, queue + head, pending());
        last_open = last_open && last_frame >= head;
        last_frame -= last_open ? head : 0;
        tail -= head;
        head = 0;
    }
    if (tail + size > QUEUE_SIZE)
        agent_end();
}

static void advance(size_t size) {
    tail += size;
    if (tail > queue_touched)
        queue_touched = tail;
}

void send_frame(uint32_t channel, uint8_t type, uint8_t flags, const void *first, size_t first_size, const void *second,
                size_t second_size) {
    make_space(WIRE_HEADER + first_size + second_size);
    put_header(tail, (uint32_t)(first_size + second_size), channel, type, flags);
    uint8_t *at = queue + tail + WIRE_HEADER;
    if (first_size)
        memcpy(at, first, first_size);
    if (second_size)
        memcpy(at + first_size, second, second_size);
    advance(WIRE_HEADER + first_size + second_size);
    last_open = false;
    flush_wanted = true;
}

static size_t room_left(void) {
    size_t used = pending() + WIRE_HEADER;
    return used < QUEUE_BULK ? QUEUE_BULK - used : 0;
}

size_t send_room(void) {
    size_t room = room_left();
    if (room >= MERGE_LIMIT)
        return room;
    starved = true;
    flush_wanted = true;
    return 0;
}

uint8_t *send_reserve(size_t *room) {
    size_t size = send_room();
    if (size > *room)
        size = *room;
    *room = size;
    if (!size)
        return NULL;
    make_space(WIRE_HEADER + size);
    return queue + tail + WIRE_HEADER;
}

void stream_hold(uint32_t channel, uint8_t type, uint8_t flags, size_t size) {
    if (!size && !flags)
        return;
    if (last_open && last_frame >= head && size <= MERGE_LIMIT && !flags && queue[last_frame + 8] == type &&
        get_u32(queue + last_frame + 4) == channel) {
        uint32_t grown = get_u32(queue + last_frame) + (uint32_t)size;
        if (grown <= WIRE_MAX_PAYLOAD) {
            memmove(queue + tail, queue + tail + WIRE_HEADER, size);
            put_u32(queue + last_frame, grown);
            advance(size);
            return;
        }
    }
    last_frame = tail;
    last_open = !flags && (type == WIRE_STDOUT || type == WIRE_STDERR);
    put_header(tail, (uint32_t)size, channel, type, flags);
    advance(WIRE_HEADER + size);
}

void send_commit(uint32_t channel, uint8_t type, uint8_t flags, size_t size) {
    stream_hold(channel, type, flags, size);
    flush_wanted = true;
}

void stream_flush_soon(void) {
    flush_wanted = true;
}

void stream_flush(void) {
    while (head < tail) {
        ssize_t sent = write(out.fd, queue + head, tail - head);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno != EAGAIN)
            agent_end();
        if (sent <= 0)
            break;
        head += (size_t)sent;
    }
    flush_wanted = head < tail;
    source_watch(&out, head < tail ? EPOLLOUT : 0);
}

static void parse(void) {
    while (input_end - input_at >= WIRE_HEADER) {
        if (pending() > QUEUE_PAUSE) {
            paused = true;
            source_watch(&in, 0);
            return;
        }
        const uint8_t *frame = input + input_at;
        uint32_t size = get_u32(frame);
        if (size > WIRE_MAX_REQUEST)
            protocol_error("frame size");
        if (frame[10] || frame[11])
            protocol_error("frame header");
        if (input_end - input_at < WIRE_HEADER + size)
            break;
        input_at += WIRE_HEADER + size;
        frame_arrived(get_u32(frame + 4), frame[8], frame[9], frame + WIRE_HEADER, size);
    }
    if (input_at == input_end)
        input_at = input_end = 0;
}

static void in_ready(struct source *source, uint32_t events) {
    if (input_at && INPUT_SIZE - input_at < WIRE_HEADER + WIRE_MAX_REQUEST) {
        memmove(input, input + input_at, input_end - input_at);
        input_end -= input_at;
        input_at = 0;
    }
    ssize_t got = read(source->fd, input + input_end, INPUT_SIZE - input_end);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0)
        agent_end();
    input_end += (size_t)got;
    if (input_end > input_touched)
        input_touched = input_end;
    parse();
}

static void out_ready(struct source *source, uint32_t events) {
    stream_flush();
}

static void pull(struct channel *channel, void *context) {
    if (channel->ops->pull)
        channel->ops->pull(channel);
}

/* Gives the pages of large buffers back while nothing is open: idle sandboxes come in thousands. */
static void trim(void) {
    if (queue_touched > KEEP && head == tail) {
        madvise(queue + KEEP, queue_touched - KEEP, MADV_DONTNEED);
        head = tail = queue_touched = 0;
    }
    if (input_touched > KEEP && input_at == input_end) {
        madvise(input + KEEP, input_touched - KEEP, MADV_DONTNEED);
        input_touched = 0;
    }
}

bool stream_turn(void) {
    if (flush_wanted || pending() >= QUEUE_HOLD)
        stream_flush();
    if (paused && pending() < QUEUE_BULK) {
        paused = false;
        source_watch(&in, EPOLLIN);
        parse();
    }
    if (starved && room_left() >= QUEUE_BULK / 2) {
        starved = false;
        channel_each(pull, NULL);
    }
    if (flush_wanted || pending() >= QUEUE_HOLD)
        stream_flush();
    if (!channel_count())
        trim();
    return (starved && room_left() >= QUEUE_BULK / 2) || (paused && pending() < QUEUE_BULK);
}

static uint8_t *reserve_memory(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        _exit(71);
    return memory;
}

void stream_prepare(void) {
    queue = reserve_memory(QUEUE_SIZE);
    input = reserve_memory(INPUT_SIZE);
    queue[0] = input[0] = 0; /* the first pages are there when the first frame is */
}

void stream_open(int in_fd, int out_fd, uint64_t features) {
    in = (struct source){.fd = in_fd, .ready = in_ready};
    out = (struct source){.fd = out_fd, .ready = out_ready};
    fcntl(in_fd, F_SETFL, fcntl(in_fd, F_GETFL) | O_NONBLOCK);
    fcntl(out_fd, F_SETFL, fcntl(out_fd, F_GETFL) | O_NONBLOCK);
    source_watch(&in, EPOLLIN);
    if (!in.events)
        _exit(71); /* not a stream */
    uint8_t hello[20] = {0};
    put_u32(hello, WIRE_MAGIC);
    hello[4] = WIRE_VERSION;
    put_u32(hello + 8, WIRE_MAX_PAYLOAD);
    hello[12] = (uint8_t)features;
    send_frame(0, WIRE_HELLO, 0, hello, sizeof hello, NULL, 0);
}
