/* Packets between the owner, the spawner and its blanks: data with descriptors, whole or not at all. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "spawner.h"

int control_fd = -1;

/* Events the owner's socket had no room for. A sandbox gives at most three (one of an inspection), a layer one and a
 * snapshot one: it cannot overflow. */
static struct event backlog[4 * MAX_SANDBOXES + MAX_KNOWN];
static size_t backlog_first, backlog_count;
enum { BACKLOG = sizeof backlog / sizeof *backlog };

static bool send_now(const struct event *event) {
    ssize_t sent = send(control_fd, event, sizeof *event, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent >= 0 || errno != EAGAIN; /* any other error is the owner's end, which the loop sees by itself */
}

void send_event(uint32_t type, uint32_t tag, int error, uint32_t reason, const char *detail) {
    struct event event = {.type = type, .tag = tag, .error = error, .reason = reason};
    snprintf(event.detail, sizeof event.detail, "%s", detail);
    if (backlog_count == 0 && send_now(&event))
        return;
    if (backlog_count < BACKLOG)
        backlog[(backlog_first + backlog_count++) % BACKLOG] = event;
}

bool events_wait(void) {
    return backlog_count > 0;
}

void send_backlog(void) {
    while (backlog_count > 0 && send_now(&backlog[backlog_first])) {
        backlog_first = (backlog_first + 1) % BACKLOG;
        backlog_count--;
    }
}

bool send_with_fds(int socket_fd, const void *data, size_t size, const int *fds, int fd_count) {
    struct iovec part = {.iov_base = (void *)data, .iov_len = size};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * MAX_FDS)];
    } space;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0) {
        message.msg_control = space.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fd_count);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fd_count);
        memcpy(CMSG_DATA(header), fds, sizeof(int) * (size_t)fd_count);
    }
    return sendmsg(socket_fd, &message, MSG_NOSIGNAL) == (ssize_t)size;
}

ssize_t receive_with_fds(int socket_fd, void *data, size_t size, int *fds, int *fd_count, int max_fds) {
    struct iovec part = {.iov_base = data, .iov_len = size};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * MAX_FDS)];
    } space;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof space.bytes};
    *fd_count = 0;
    ssize_t got = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
    if (got < 0)
        return got;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        int count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + sizeof(int) * (size_t)i, sizeof fd);
            if (*fd_count < max_fds)
                fds[(*fd_count)++] = fd;
            else
                close(fd);
        }
    }
    if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        while (*fd_count > 0)
            close(fds[--*fd_count]);
        errno = EMSGSIZE;
        return -1;
    }
    return got;
}

ssize_t receive_request(void *buffer, size_t size, int *fds, int *fd_count, int max_fds) {
    return receive_with_fds(control_fd, buffer, size, fds, fd_count, max_fds);
}
