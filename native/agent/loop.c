/* The event loop: watched descriptors and timers. It sleeps without a limit when no timer is set. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

enum { BATCH = 64 };

static int epoll_fd = -1;
static struct epoll_event batch[BATCH];
static int batch_size, batch_at;
static struct timer *timers; /* sorted by at_ns */
static bool no_pwait2;

void loop_open(void) {
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0)
        _exit(71);
}

/* Events of this turn that are still to come are not delivered: their source may be gone by then. */
static void forget_events(const struct source *source) {
    for (int i = batch_at; i < batch_size; i++)
        if (batch[i].data.ptr == source)
            batch[i].data.ptr = NULL;
}

void source_watch(struct source *source, uint32_t events) {
    if (source->events == events || source->fd < 0)
        return;
    struct epoll_event event = {.events = events, .data.ptr = source};
    int op = !source->events ? EPOLL_CTL_ADD : events ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
    if (epoll_ctl(epoll_fd, op, source->fd, &event) == 0)
        source->events = events;
    if (!events)
        forget_events(source);
}

void source_close(struct source *source) {
    if (source->fd < 0)
        return;
    /* Removed by hand: close() alone does not, while a child still shares the open file. */
    source_watch(source, 0);
    close(source->fd);
    source->fd = -1;
}

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void timer_clear(struct timer *timer) {
    if (!timer->at_ns)
        return;
    struct timer **link = &timers;
    while (*link != timer)
        link = &(*link)->next;
    *link = timer->next;
    timer->at_ns = 0;
}

void timer_set(struct timer *timer, uint64_t at_ns) {
    timer_clear(timer);
    timer->at_ns = at_ns ? at_ns : 1;
    struct timer **link = &timers;
    while (*link && (*link)->at_ns <= timer->at_ns)
        link = &(*link)->next;
    timer->next = *link;
    *link = timer;
}

static void timers_fire(void) {
    if (!timers)
        return;
    uint64_t now = now_ns();
    while (timers && timers->at_ns <= now) {
        struct timer *timer = timers;
        timers = timer->next;
        timer->at_ns = 0;
        timer->fire(timer);
    }
}

static int wait_for(uint64_t limit_ns) {
#ifdef SYS_epoll_pwait2
    if (!no_pwait2) {
        struct timespec limit = {.tv_sec = (time_t)(limit_ns / 1000000000ull),
                                 .tv_nsec = (long)(limit_ns % 1000000000ull)};
        int got = (int)syscall(SYS_epoll_pwait2, epoll_fd, batch, BATCH, &limit, NULL, 8);
        if (got >= 0 || errno != ENOSYS)
            return got;
        no_pwait2 = true;
    }
#endif
    uint64_t limit_ms = (limit_ns + MILLISECOND_NS - 1) / MILLISECOND_NS;
    return epoll_wait(epoll_fd, batch, BATCH, limit_ms > 1000000 ? 1000000 : (int)limit_ms);
}

static int wait_for_events(bool more) {
    if (more)
        return epoll_wait(epoll_fd, batch, BATCH, 0);
    if (!timers)
        return epoll_wait(epoll_fd, batch, BATCH, -1);
    uint64_t now = now_ns();
    return wait_for(timers->at_ns > now ? timers->at_ns - now : 0);
}

_Noreturn void loop_run(void) {
    for (;;) {
        bool more = stream_turn();
        batch_size = wait_for_events(more);
        if (batch_size < 0 && errno != EINTR)
            agent_end();
        for (batch_at = 0; batch_at < batch_size;) {
            struct epoll_event event = batch[batch_at++];
            struct source *source = event.data.ptr;
            if (source)
                source->ready(source, event.events);
        }
        timers_fire();
    }
}
