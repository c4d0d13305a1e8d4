/* Owns how relays begin: listening on the sandbox's loopback, and connecting to what listens inside. Refuses to reach
 * beyond: 127.0.0.1 and unix sockets only. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "file.h"
#include "path.h"
#include "relay.h"

static const uint64_t pause_ns = 50 * 1000000ull;

enum { ACCEPT_TURN = 64 };

struct listener {
    struct channel channel;
    struct source source;
    struct timer pause;
};

static struct sockaddr_in loopback(uint16_t port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void no_delay(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* ---- listen ---- */

static void accept_one(struct listener *listener, int fd) {
    uint8_t payload[4];
    uint32_t id = channel_fresh_id();
    no_delay(fd);
    put_u32(payload, listener->channel.id);
    if (relay_open(id, fd, false, true, 0) == 0)
        send_frame(id, WIRE_ACCEPT, 0, payload, sizeof payload, NULL, 0);
}

static void listener_ready(struct source *source, uint32_t events) {
    struct listener *listener = source->owner;
    for (int i = 0; i < ACCEPT_TURN; i++) {
        int fd = -1, error = EMFILE;
        if (relay_accepted() < RELAY_ACCEPT_LIMIT) {
            fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            error = errno;
        }
        if (fd >= 0) {
            accept_one(listener, fd);
        } else if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
            /* The connection stays in the backlog, and readable: without a pause this would spin. */
            source_watch(source, 0);
            timer_set(&listener->pause, now_ns() + pause_ns);
            return;
        } else if (error != EINTR && error != ECONNABORTED) {
            return;
        }
    }
}

static void pause_over(struct timer *timer) {
    struct listener *listener = timer->owner;
    source_watch(&listener->source, EPOLLIN);
}

static void listener_frame(struct channel *channel, uint8_t type, uint8_t flags, const uint8_t *data, size_t size) {
    if (type != WIRE_CANCEL || size != 0)
        protocol_error("unexpected frame on a LISTEN channel");
    end_ok(channel->id, NULL, 0);
}

static void listener_close(struct channel *channel) {
    struct listener *listener = (struct listener *)channel;
    timer_clear(&listener->pause);
    source_close(&listener->source);
    free(listener);
}

static const struct channel_ops listener_ops = {.frame = listener_frame, .close = listener_close};

/* Binds and listens; 0 or an errno. *port becomes the one bound. */
static int listen_on(int fd, uint16_t *port) {
    struct sockaddr_in address = loopback(*port);
    socklen_t size = sizeof address;
    int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        return errno;
    *port = ntohs(address.sin_port);
    return 0;
}

void request_listen(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint16_t port = take_u16(&reader);
    if (!reader_done(&reader))
        protocol_error("LISTEN");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int error = fd < 0 ? errno : listen_on(fd, &port);
    struct listener *listener = error ? NULL : calloc(1, sizeof *listener);
    if (!listener) {
        error = error ? error : ENOMEM;
        end_error(id, error, "port", strerror(error));
        if (fd >= 0)
            close(fd);
        return;
    }
    listener->source = (struct source){.fd = fd, .ready = listener_ready, .owner = listener};
    listener->pause = (struct timer){.fire = pause_over, .owner = listener};
    channel_open(&listener->channel, id, &listener_ops);
    source_watch(&listener->source, EPOLLIN);
    uint8_t payload[2] = {(uint8_t)port, (uint8_t)(port >> 8)};
    send_frame(id, WIRE_OPENED, 0, payload, sizeof payload, NULL, 0);
}

/* ---- connect ---- */

static void connect_to(uint32_t id, uint64_t window, const struct sockaddr *address, socklen_t size) {
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int error = fd < 0 ? errno : 0;
    if (fd >= 0 && connect(fd, address, size) != 0)
        error = errno;
    if (error && error != EINPROGRESS) {
        end_error(id, error, "connect", strerror(error));
        if (fd >= 0)
            close(fd);
        return;
    }
    if (address->sa_family == AF_INET)
        no_delay(fd);
    int failure = relay_open(id, fd, error == EINPROGRESS, false, window);
    if (failure)
        end_error(id, failure, "relay", strerror(failure));
    else if (!error)
        send_frame(id, WIRE_OPENED, 0, NULL, 0, NULL, 0);
}

void request_connect(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint64_t window = take_u64(&reader);
    uint16_t port = take_u16(&reader);
    struct slice text = take_bytes(&reader);
    if (!reader_done(&reader))
        protocol_error("CONNECT");
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct sockaddr_in address = loopback(port);
    char path[PATH_MAX];
    if (text.size == 0 && port == 0) {
        end_error(id, EINVAL, "port", "neither a port nor a path");
    } else if (text.size == 0) {
        connect_to(id, window, (struct sockaddr *)&address, sizeof address);
    } else if (path_take(id, text, "path", path)) {
        if (text.size >= sizeof local.sun_path) {
            path_error(id, "path", ENAMETOOLONG, path, "a unix socket's path has at most 107 bytes");
            return;
        }
        memcpy(local.sun_path, path, text.size + 1);
        connect_to(id, window, (struct sockaddr *)&local, sizeof local);
    }
}
