/* Owns relayed connections: bytes both ways under credit, each direction ending by itself. Holds at most the credit it
 * gave the host (WIRE_INITIAL_CREDIT) for the socket, and nothing for the host: what cannot be sent is not read. */
#define _GNU_SOURCE
#include "relay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "file.h"

enum { PIECE = 64 << 10, TURN = 256 << 10, GRANT_AT = WIRE_INITIAL_CREDIT / 4 };

struct relay {
    struct channel channel;
    struct source source;
    bool accepted, connecting;
    bool read_ended;   /* the socket's end was told to the host */
    bool read_blocked; /* bytes are there, but no credit or no room in the queue: wait for pull */
    bool host_ended;   /* the host will send no more */
    bool write_ended;  /* and all of it has been passed on */
    int write_error;   /* the socket takes no more; what the host sends is dropped. Told when its own bytes are read */
    uint8_t *data;     /* from the host, for the socket; NULL: nothing waits */
    size_t at, size;
    size_t credit;  /* what the host may still send */
    size_t granted; /* passed on and not yet granted again */
};

static int accepted_count;

int relay_accepted(void) {
    return accepted_count;
}

static void watch(struct relay *relay) {
    bool reading = !relay->connecting && !relay->read_ended && !relay->read_blocked;
    source_watch(&relay->source, (reading ? EPOLLIN : 0) | (relay->connecting || relay->data ? EPOLLOUT : 0));
}

/* Ends the channel if there is nothing left to do; false if it did. */
static bool goes_on(struct relay *relay) {
    if (relay->read_ended && relay->write_error)
        end_error(relay->channel.id, relay->write_error, "send", strerror(relay->write_error));
    else if (relay->read_ended && relay->write_ended)
        end_ok(relay->channel.id, NULL, 0);
    else
        return true;
    return false;
}

/* ---- socket to host ---- */

static void tell_end(struct relay *relay) {
    send_frame(relay->channel.id, WIRE_DATA, WIRE_FLAG_END, NULL, 0, NULL, 0);
    relay->read_ended = true;
}

/* With no credit the end of the stream can still be told. */
static void look_for_end(struct relay *relay) {
    char byte;
    ssize_t got = recv(relay->source.fd, &byte, 1, MSG_PEEK);
    if (got == 0)
        tell_end(relay);
    else if (got > 0)
        relay->read_blocked = true;
}

/* False: the channel has ended. */
static bool read_socket(struct relay *relay) {
    struct channel *channel = &relay->channel;
    relay->read_blocked = false;
    for (size_t turn = 0; turn < TURN && !relay->read_ended;) {
        if (channel->window == 0) {
            look_for_end(relay);
            break;
        }
        size_t room = channel->window < PIECE ? (size_t)channel->window : PIECE;
        uint8_t *space = send_reserve(&room);
        if (!space) {
            relay->read_blocked = true;
            break;
        }
        ssize_t got = recv(relay->source.fd, space, room, 0);
        if (got > 0) {
            send_commit(channel->id, WIRE_DATA, 0, (size_t)got);
            channel->window -= (uint64_t)got;
            turn += (size_t)got;
        } else if (got == 0) {
            tell_end(relay);
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            end_error(channel->id, errno, "receive", strerror(errno));
            return false;
        }
    }
    return goes_on(relay);
}

static void relay_pull(struct channel *channel) {
    struct relay *relay = (struct relay *)channel;
    if (relay->read_blocked && read_socket(relay)) /* otherwise its turn comes from epoll */
        watch(relay);
}

/* ---- host to socket ---- */

static void grant(struct relay *relay, size_t size) {
    uint8_t payload[8];
    relay->granted += size;
    if (relay->granted < GRANT_AT || relay->host_ended)
        return;
    put_u64(payload, relay->granted);
    send_frame(relay->channel.id, WIRE_WINDOW, 0, payload, sizeof payload, NULL, 0);
    relay->credit += relay->granted;
    relay->granted = 0;
}

/* Passes on what the socket takes; the number of bytes done with (all of them once it takes no more). */
static size_t pass_on(struct relay *relay, const uint8_t *data, size_t size) {
    size_t done = 0;
    while (done < size && !relay->write_error) {
        ssize_t sent = send(relay->source.fd, data + done, size - done, MSG_NOSIGNAL);
        if (sent >= 0)
            done += (size_t)sent;
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            relay->write_error = errno;
    }
    if (relay->write_error)
        done = size;
    grant(relay, done);
    return done;
}

static void drop_data(struct relay *relay) {
    free(relay->data);
    relay->data = NULL;
    relay->at = relay->size = 0;
}

/* False: the channel has ended. */
static bool finish_writing(struct relay *relay) {
    if (relay->host_ended && !relay->data && !relay->connecting && !relay->write_ended) {
        relay->write_ended = true;
        shutdown(relay->source.fd, SHUT_WR); /* if the peer is gone already, reading says so */
    }
    return goes_on(relay);
}

/* False: the channel has ended. */
static bool write_socket(struct relay *relay) {
    if (relay->data) {
        relay->at += pass_on(relay, relay->data + relay->at, relay->size - relay->at);
        if (relay->at == relay->size)
            drop_data(relay);
    }
    return finish_writing(relay);
}

static bool keep(struct relay *relay, const uint8_t *data, size_t size) {
    if (!relay->data && !(relay->data = malloc(WIRE_INITIAL_CREDIT)))
        return false;
    if (relay->size + size > WIRE_INITIAL_CREDIT) { /* credit sees to it that it fits once moved */
        memmove(relay->data, relay->data + relay->at, relay->size - relay->at);
        relay->size -= relay->at;
        relay->at = 0;
    }
    memcpy(relay->data + relay->size, data, size);
    relay->size += size;
    return true;
}

static void relay_frame(struct channel *channel, uint8_t type, uint8_t flags, const uint8_t *data, size_t size) {
    struct relay *relay = (struct relay *)channel;
    if (type == WIRE_CANCEL && size == 0) {
        /* The peer must not take a broken connection for a complete one: reset it. */
        struct linger reset = {.l_onoff = 1};
        setsockopt(relay->source.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        end_error(channel->id, ECANCELED, "cancel", "cancelled by the host");
        return;
    }
    if (type != WIRE_DATA || relay->host_ended)
        protocol_error("unexpected frame on a relay");
    if (size > relay->credit)
        protocol_error("more DATA than credit on a relay");
    relay->credit -= size;
    relay->host_ended = flags & WIRE_FLAG_END;
    size_t done = relay->data || relay->connecting ? 0 : pass_on(relay, data, size);
    if (done < size && !keep(relay, data + done, size - done))
        end_error(channel->id, ENOMEM, "relay", strerror(ENOMEM));
    else if (finish_writing(relay))
        watch(relay);
}

/* ---- both ---- */

/* False: the channel has ended. */
static bool finish_connecting(struct relay *relay) {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(relay->source.fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    if (error) {
        end_error(relay->channel.id, error, "connect", strerror(error));
        return false;
    }
    relay->connecting = false;
    send_frame(relay->channel.id, WIRE_OPENED, 0, NULL, 0, NULL, 0);
    return true;
}

static void relay_ready(struct source *source, uint32_t events) {
    struct relay *relay = source->owner;
    if (relay->connecting && !finish_connecting(relay))
        return;
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) && !write_socket(relay))
        return;
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) && !relay->read_ended && !relay->read_blocked && !read_socket(relay))
        return;
    watch(relay);
}

static void relay_close(struct channel *channel) {
    struct relay *relay = (struct relay *)channel;
    accepted_count -= relay->accepted;
    source_close(&relay->source);
    free(relay->data);
    free(relay);
}

static const struct channel_ops relay_ops = {.frame = relay_frame, .pull = relay_pull, .close = relay_close};

int relay_open(uint32_t id, int fd, bool connecting, bool accepted, uint64_t window) {
    struct relay *relay = calloc(1, sizeof *relay);
    if (!relay) {
        close(fd);
        return ENOMEM;
    }
    relay->source = (struct source){.fd = fd, .ready = relay_ready, .owner = relay};
    relay->connecting = connecting;
    relay->accepted = accepted;
    relay->credit = WIRE_INITIAL_CREDIT;
    accepted_count += accepted;
    channel_open(&relay->channel, id, &relay_ops);
    relay->channel.window = window;
    watch(relay);
    return 0;
}
