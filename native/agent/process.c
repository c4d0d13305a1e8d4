/* The processes we started, by pid, and the reaping of everybody who ends up below us. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core.h"

enum { BUCKETS = 256 };

static struct process *buckets[BUCKETS];
static size_t count;
static struct source children_source;
static int list_fd = -1; /* our children, as the kernel lists them; opened when first needed */
static size_t reaped;    /* of ours, whose `ended` is still to be called */
static bool rest_left;   /* processes that outlive their command in the background */

/* Short commands end before anybody is told of them. */
static const uint64_t tell_after_ns = 10 * MILLISECOND_NS, tell_again_ns = 1000 * MILLISECOND_NS;
static struct timer tell_timer;
static int busy_fd;

static void tell(struct timer *timer) {
    const uint64_t one = 1;
    if (!count && !rest_left)
        return;
    (void)!write(busy_fd, &one, sizeof one);
    timer_set(timer, now_ns() + tell_again_ns);
}

void process_tell(int fd) {
    busy_fd = fd;
    tell_timer = (struct timer){.fire = tell};
}

struct process *process_find(pid_t pid) {
    struct process *process = buckets[pid % BUCKETS];
    while (process && process->pid != pid)
        process = process->next;
    return process;
}

void process_add(struct process *process) {
    struct process **bucket = &buckets[process->pid % BUCKETS];
    process->next = *bucket;
    *bucket = process;
    count++;
    if (busy_fd > 0 && !tell_timer.at_ns)
        timer_set(&tell_timer, now_ns() + tell_after_ns);
}

void process_remove(struct process *process) {
    struct process **link = &buckets[process->pid % BUCKETS];
    while (*link && *link != process)
        link = &(*link)->next;
    if (!*link)
        return;
    *link = process->next;
    count--;
    if (!count && !rest_left)
        timer_clear(&tell_timer);
}

size_t process_count(void) {
    return count;
}

/* A child that is not one of ours and may belong to the mark. One whose mark is no command's has lost it on purpose. */
static bool is_stray(pid_t pid, uint64_t ended) {
    if (process_find(pid))
        return false;
    uint64_t mark = tree_mark_of(pid);
    return mark == ended || !tree_is_issued(mark);
}

void process_leave_rest(void) {
    rest_left = true;
}

bool process_only(pid_t leader) {
    return count == (process_find(leader) != NULL) && reaped == 0 && !rest_left;
}

static bool lists_stray(uint64_t mark) {
    if (list_fd < 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)gettid());
        list_fd = open(path, O_RDONLY | O_CLOEXEC);
        if (list_fd < 0)
            return true; /* a kernel without the list: the caller has to scan */
    }
    char text[4096];
    off_t at = 0;
    pid_t pid = 0;
    for (ssize_t got; (got = pread(list_fd, text, sizeof text, at)) > 0; at += got)
        for (ssize_t i = 0; i < got; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            if (pid && is_stray(pid, mark))
                return true;
            pid = 0;
        }
    return false;
}

/* One that forks and exits all the time may be missed by each look, but not without using up numbers. */
bool process_strays(uint64_t mark, pid_t leader) {
    enum { LOOKS = 4 };
    if (!tree_is_whole())
        return lists_stray(mark);
    if (process_only(leader))
        return true;
    for (int i = 0; i < LOOKS; i++) {
        long newest = tree_newest();
        if (lists_stray(mark))
            return true;
        if (tree_newest() == newest)
            return false;
    }
    return true;
}

static void reap(struct source *source, uint32_t events) {
    struct signalfd_siginfo info = {0};
    if (read(source->fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1) {
        if (tree_is_whole() && info.ssi_pid == 0) /* from outside our pid namespace: not from anybody in the sandbox */
            exit_purge();
        return;
    }
    struct process *ended = NULL, **last = &ended;
    struct rusage usage;
    int status;
    pid_t pid;
    while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
        struct process *process = process_find(pid);
        if (!process)
            continue;
        process_remove(process);
        process->status = status;
        process->usage = usage;
        process->next_ended = NULL;
        *last = process;
        last = &process->next_ended;
        reaped++;
    }
    bool alone = pid < 0 && errno == ECHILD;
    if (alone)
        rest_left = false;
    while (ended) {
        struct process *process = ended;
        ended = process->next_ended;
        reaped--;
        process->ended(process, process->status, &process->usage, alone);
    }
}

void process_open(void) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigaddset(&child, SIGUSR1); /* too much kernel memory is held here */
    children_source = (struct source){.fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK), .ready = reap};
    source_watch(&children_source, EPOLLIN);
}
