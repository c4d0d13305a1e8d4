/* The spawner's loop: orders from the owner, deaths of children, lifetimes, and a stock of blanks kept ready.
 *
 *   dutyfree-spawner --control FD --owner PID [--cgroup auto|v1|v2|none]
 *
 * It ends with its owner, told by the control socket's end and, should a fork of the owner hold that open, by a pidfd
 * on the owner itself. Its end is the end of every sandbox: orderly here, and by the kernel (PDEATHSIG) if we are
 * killed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "spawner.h"
#include "state.h"
#include "watch.h"

/* Making a blank costs the kernel a millisecond, which the new sandbox's first command would feel: so not right after
 * an order. A burst that empties the stock pays that millisecond each. */
enum { REFILL_PAUSE_MS = 10 };

char *spawner_arguments;
size_t spawner_arguments_size;

static struct sandbox sandboxes[MAX_SANDBOXES];
static uint32_t highest;      /* entries in use lie below */
static uint32_t stock_target; /* blanks to keep ready */
static bool refill_failed;    /* until somebody asks: a machine that cannot make blanks is not asked in a loop */

uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void close_if_open(int fd) {
    if (fd >= 0)
        close(fd);
}

/* A child that was born has closed its end; what it might have said of a failure can no longer come. */
static void close_sockets_of_born(void) {
    char byte;
    for (uint32_t i = 0; i < highest; i++)
        if (sandboxes[i].life == LIVE && sandboxes[i].socket_fd >= 0 &&
            recv(sandboxes[i].socket_fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0) {
            close(sandboxes[i].socket_fd);
            sandboxes[i].socket_fd = -1;
        }
}

static struct sandbox *free_entry(void) {
    for (uint32_t i = 0; i < MAX_SANDBOXES; i++)
        if (sandboxes[i].life == EMPTY) {
            if (i >= highest)
                highest = i + 1;
            return &sandboxes[i];
        }
    errno = EUSERS;
    return NULL;
}

struct sandbox *live_sandbox(uint32_t number) {
    return number < highest ? &sandboxes[number] : NULL;
}

struct sandbox *find_sandbox(uint32_t tag) {
    for (uint32_t i = 0; i < highest; i++)
        if ((sandboxes[i].life == LIVE || sandboxes[i].life == DYING) && sandboxes[i].tag == tag)
            return &sandboxes[i];
    return NULL;
}

/* ---- deaths ---- */

static void report_death(struct sandbox *sandbox, int status) {
    struct failure failure;
    bool told =
        sandbox->socket_fd >= 0 && recv(sandbox->socket_fd, &failure, sizeof failure, MSG_DONTWAIT) == sizeof failure;
    if (sandbox->life == BLANK) {
        refill_failed = true;
        expect(NULL);
    }
    if (sandbox->tag == 0)
        return;
    if (told) {
        failure.step[sizeof failure.step - 1] = 0;
        send_event(EVENT_FAILED, sandbox->tag, failure.error, 0, failure.step);
        return;
    }
    int oom_fd = sandbox->reason == GONE_DIED ? cgroup_open_oom(&sandbox->slot->cgroup) : -1;
    if (cgroup_oom_kills(oom_fd) > sandbox->oom_kills)
        sandbox->reason = GONE_OOM;
    close_if_open(oom_fd);
    send_event(EVENT_GONE, sandbox->tag, status, sandbox->reason, "");
}

static void collect_deaths(void) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (snapshot_collect(pid, status))
            continue;
        for (uint32_t i = 0; i < highest; i++)
            if (sandboxes[i].life != EMPTY && sandboxes[i].pid == pid) {
                /* The first process of a pid namespace is collected after all others: the cgroups are empty now. */
                snapshot_abandon_of(&sandboxes[i]);
                report_death(&sandboxes[i], status);
                close_if_open(sandboxes[i].socket_fd);
                blank_close_prepared(&sandboxes[i]);
                slot_put(sandboxes[i].slot);
                sandboxes[i].life = EMPTY;
            }
    }
}

void end_sandbox(struct sandbox *sandbox, enum gone_reason reason) {
    if (sandbox->life != LIVE)
        return;
    sandbox->reason = reason;
    snapshot_abandon_of(sandbox); /* what is frozen does not die */
    blank_kill(sandbox);
}

static int end_lifetimes(void) { /* milliseconds to the next one; -1: none */
    uint64_t now = monotonic_ns(), next = 0;
    for (uint32_t i = 0; i < highest; i++) {
        struct sandbox *sandbox = &sandboxes[i];
        if (sandbox->life != LIVE || sandbox->ends_ns == 0)
            continue;
        if (sandbox->ends_ns <= now)
            end_sandbox(sandbox, GONE_LIFETIME);
        else if (next == 0 || sandbox->ends_ns < next)
            next = sandbox->ends_ns;
    }
    return next ? (int)((next - now) / 1000000 + 1) : -1;
}

/* ---- orders ---- */

static struct sandbox *find_blank(bool host_network, uint32_t root) {
    for (uint32_t i = 0; i < highest; i++)
        if (sandboxes[i].life == BLANK && sandboxes[i].host_network == host_network && sandboxes[i].root == root)
            return &sandboxes[i];
    return NULL;
}

static struct sandbox *take_blank(const struct create_request *request, const char **step) {
    bool host_network = request->flags & CREATE_HOST_NETWORK;
    uint32_t root = expected_number(request);
    struct sandbox *blank = root ? find_blank(host_network, root) : NULL;
    if (blank || (blank = find_blank(host_network, 0)))
        return blank;
    close_sockets_of_born();
    blank = free_entry();
    *step = blank ? blank_make(blank, host_network) : "take an entry";
    return *step ? NULL : blank;
}

static void create(const struct create_request *request, const int *given) {
    const char *step = NULL;
    struct sandbox *blank = take_blank(request, &step);
    if (blank && ((!blank->root && (step = order_root(request, blank, given[1]))) ||
                  (step = order_start(request, blank, given[0]))))
        blank_kill(blank);
    if (step) {
        send_event(EVENT_FAILED, request->head.tag, errno, 0, step);
        return;
    }
    blank->life = LIVE;
    blank->tag = request->head.tag;
    blank->reason = GONE_DIED;
    blank->charged = 0;
    blank->relieved_ns = 0;
    scratch_expected = (struct scratch){.bytes = request->disk_bytes, .files = request->files};
    expect(request);
    blank->ends_ns = request->lifetime_ns ? monotonic_ns() + request->lifetime_ns : 0;
}

static bool create_request_is_sound(const struct create_request *request, ssize_t size, int fd_count) {
    if (size != sizeof *request || request->layer_count == 0 || request->layer_count > MAX_LAYERS ||
        request->bind_count > MAX_BINDS || fd_count != 1 + !!(request->flags & CREATE_DISK) || request->head.tag == 0)
        return false;
    for (uint32_t i = 0; i < request->bind_count; i++)
        if (memchr(request->binds[i].target, 0, TARGET_SIZE) == NULL)
            return false;
    return true;
}

static void inspect_for_owner(uint32_t tag, const int *fds, int fd_count) {
    struct sandbox *sandbox = find_sandbox(tag);
    const char *step = "find the sandbox";
    errno = ESRCH;
    if (sandbox && sandbox->life == LIVE && fd_count == 1)
        step = inspect(sandbox, fds[0]);
    send_event(EVENT_INSPECTED, tag, step ? errno : 0, 0, step ? step : "");
}

static void serve_request(const void *packet, ssize_t size, const int *fds, int fd_count) {
    const struct request_head *head = packet;
    const struct layer_request *layer = packet;
    struct sandbox *sandbox;
    if (size < (ssize_t)sizeof *head)
        return;
    switch (head->type) {
    case REQUEST_LAYER:
        if (size > (ssize_t)sizeof *layer && ((const char *)packet)[size - 1] == 0) {
            const char *step = ground_add_layer(layer->number, (const char *)(layer + 1), layer->host);
            send_event(EVENT_LAYER, head->tag, step ? errno : 0, 0, step ? step : "");
        }
        break;
    case REQUEST_CREATE:
        refill_failed = false;
        if (create_request_is_sound(packet, size, fd_count))
            create(packet, fds);
        else
            send_event(EVENT_FAILED, head->tag, EINVAL, 0, "read the request");
        break;
    case REQUEST_DESTROY:
        if ((sandbox = find_sandbox(head->tag)))
            end_sandbox(sandbox, GONE_DESTROYED);
        else
            send_event(EVENT_GONE, head->tag, 0, GONE_DESTROYED, "");
        break;
    case REQUEST_STOCK:
        if (size >= (ssize_t)sizeof *layer)
            stock_target = layer->number < 256 ? layer->number : 256;
        break;
    case REQUEST_SNAPSHOT:
        if (size > (ssize_t)sizeof(struct snapshot_request) && ((const char *)packet)[size - 1] == 0)
            snapshot_begin(packet, (const char *)packet + sizeof(struct snapshot_request));
        break;
    case REQUEST_ABANDON:
        snapshot_abandon(head->tag);
        break;
    case REQUEST_FORGET:
        if (size >= (ssize_t)sizeof *layer)
            layer_forget(layer->number);
        break;
    case REQUEST_INSPECT:
        inspect_for_owner(head->tag, fds, fd_count);
        break;
    }
}

static bool serve_owner(void) { /* false: the owner is gone */
    static union {
        struct create_request create;
        char bytes[8192];
    } packet;
    int fds[MAX_FDS] = {-1, -1}, fd_count;
    ssize_t size = receive_request(&packet, sizeof packet, fds, &fd_count, MAX_FDS);
    if (size == 0 || (size < 0 && errno == ECONNRESET))
        return false;
    if (size > 0)
        serve_request(&packet, size, fds, fd_count);
    for (int i = 0; i < fd_count; i++)
        close(fds[i]);
    return true;
}

/* ---- the stock ---- */

enum chore { NOTHING, MAKE_BLANK, GIVE_ROOT, KILL_STALE };

/* What there is to do for the orders to come, most urgent first, and for which blank. Some of the stock stays plain,
 * for an order that nobody expected. */
static enum chore next_chore(struct sandbox **blank) {
    const struct create_request *likely = expected_request();
    uint32_t root = likely ? expected_number(likely) : 0, blanks = 0, rooted = 0;
    struct sandbox *plain = NULL, *stale = NULL;
    for (uint32_t i = 0; i < highest; i++) {
        struct sandbox *one = &sandboxes[i];
        if (one->life != BLANK)
            continue;
        blanks++;
        rooted += one->root != 0 && one->root == root;
        if (one->root == 0)
            plain = one;
        else if (one->root != root)
            stale = one;
    }
    uint32_t reserve = stock_target > 1 ? (stock_target + 3) / 4 : 0;
    *blank = plain;
    if (blanks < stock_target)
        return MAKE_BLANK;
    if (root && plain && !plain->host_network && rooted < stock_target - reserve)
        return GIVE_ROOT;
    *blank = stale;
    return stale ? KILL_STALE : NOTHING;
}

static void do_chore(enum chore chore, struct sandbox *blank) {
    if (chore == MAKE_BLANK) {
        close_sockets_of_born();
        blank = free_entry();
        if (!blank || blank_make(blank, false))
            refill_failed = true;
    } else if (chore == GIVE_ROOT) {
        if (order_root(expected_request(), blank, -1)) {
            refill_failed = true;
            blank_kill(blank);
        } else {
            blank->root = expected_number(expected_request());
        }
    } else {
        blank_kill(blank);
    }
}

/* ---- life and death of the spawner ---- */

static void loop(int signal_fd, int owner_fd) {
    struct pollfd watched[] = {
        {control_fd, POLLIN, 0}, {signal_fd, POLLIN, 0}, {owner_fd, POLLIN, 0}, {watch_busy_fd, POLLIN, 0}};
    bool pausing = true;
    for (;;) {
        watch_look();
        int timeout = end_lifetimes(), look = watch_timeout();
        if (look >= 0 && (timeout < 0 || look < timeout))
            timeout = look;
        struct sandbox *blank = NULL;
        enum chore chore = refill_failed ? NOTHING : next_chore(&blank);
        if (chore)
            timeout = pausing ? REFILL_PAUSE_MS : 0;
        watched[0].events = (short)(POLLIN | (events_wait() ? POLLOUT : 0));
        int ready = poll(watched, 4, timeout);
        if (ready < 0 && errno != EINTR)
            return;
        if (watched[1].revents) {
            struct signalfd_siginfo info;
            if (read(signal_fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGTERM)
                return;
            collect_deaths();
        }
        if (watched[2].revents)
            return;
        if (watched[3].revents)
            watch_wake();
        if (watched[0].revents & POLLOUT)
            send_backlog();
        if (watched[0].revents & ~POLLOUT && !serve_owner())
            return;
        if (ready == 0 && chore)
            do_chore(chore, blank);
        pausing = ready > 0;
    }
}

static void end_everything(void) {
    for (uint32_t i = 0; i < highest; i++)
        if (sandboxes[i].life != EMPTY) {
            snapshot_abandon_of(&sandboxes[i]);
            kill(sandboxes[i].pid, SIGKILL);
        }
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
    cgroup_remove_all();
}

static void report_ready(const char *failed_step) {
    static const char *const kinds[] = {"none", "v1", "v2"};
    char text[112];
    if (failed_step) {
        send_event(EVENT_READY, 0, errno, 0, failed_step);
        return;
    }
    snprintf(text, sizeof text, "%s;%d;%.90s", kinds[cgroup_kind], powers.idmap, cgroup_lost);
    send_event(EVENT_READY, 0, 0, 0, text);
}

int main(int argc, char **argv) {
    const char *cgroup = "auto";
    pid_t owner = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--control") == 0)
            control_fd = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--owner") == 0)
            owner = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--cgroup") == 0)
            cgroup = argv[i + 1];
    }
    if (control_fd < 3 || owner <= 0) {
        fprintf(stderr, "usage: dutyfree-spawner --control FD --owner PID [--cgroup auto|v1|v2|none]\n"
                        "started by the dutyfree package; not for use by hand\n");
        return 64;
    }
    spawner_arguments = argv[0];
    spawner_arguments_size = (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) + 1 - argv[0]);
    fcntl(control_fd, F_SETFD, FD_CLOEXEC);
    int owner_fd = (int)syscall(__NR_pidfd_open, owner, 0);
    if (owner_fd < 0 || getppid() != owner)
        return 0; /* died already */
    setsid();     /* a Ctrl-C in the owner's terminal is the owner's to handle */
    prctl(PR_SET_NAME, "dutyfree-spawner");
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    sigset_t caught;
    sigemptyset(&caught);
    sigaddset(&caught, SIGCHLD);
    sigaddset(&caught, SIGTERM);
    sigprocmask(SIG_BLOCK, &caught, NULL);
    signal(SIGPIPE, SIG_IGN);
    int signal_fd = signalfd(-1, &caught, SFD_CLOEXEC);
    cgroup_prepare(cgroup); /* before the ground: these need the host's paths */
    slot_prepare();
    const char *step = ground_prepare();
    filter_prepare();
    watch_prepare();
    report_ready(step);
    if (!step && signal_fd >= 0)
        loop(signal_fd, owner_fd);
    end_everything();
    return 0;
}
