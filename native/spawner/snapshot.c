/* Snapshots: a copy of what a sandbox has written, made by a child of ours, so that the loop serves others meanwhile.
 *
 * The copier reads what untrusted code has arranged. It stops the sandbox, then gives up every privilege but those over
 * the sandbox's own ids: it enters the sandbox's user namespace and keeps two directories, what is copied and where to,
 * the latter mounted so that the sandbox's ids become those of the store. Whoever dies: the copier thaws what it froze
 * when we are gone, and we when it is gone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "state.h"

enum { MAX_COPIES = 64, COPIER_FDS = 4 };

static struct copying {
    pid_t pid; /* 0: free */
    uint32_t number, layer;
    bool of_layer; /* and not of what the sandbox has written: nothing is frozen */
    int result_fd;
    const struct sandbox *sandbox; /* NULL: it ended meanwhile */
    struct slot *slot;
} copies[MAX_COPIES];

/* ---- in the copier ---- */

static struct freeze frozen;

static void on_end(int number) {
    freeze_end(&frozen);
    _exit(128 + number);
}

static const char *tie_to_spawner(pid_t spawner) {
    struct sigaction action = {.sa_handler = on_end};
    sigset_t none;
    sigemptyset(&none);
    if (sigaction(SIGTERM, &action, NULL) != 0 || sigprocmask(SIG_SETMASK, &none, NULL) != 0 ||
        prctl(PR_SET_PDEATHSIG, SIGTERM) != 0)
        return "tie the copier to the spawner's life";
    if (getppid() != spawner)
        on_end(SIGTERM);
    return NULL;
}

static const char *give_up_privileges(int userns_fd, pid_t spawner) {
    if (setns(userns_fd, CLONE_NEWUSER) != 0)
        return "enter the sandbox's ids";
    if (setgroups(0, NULL) != 0 || setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0)
        return "become root inside";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return "forbid new privileges";
    umask(0);
    return tie_to_spawner(spawner); /* again: changing ids unties */
}

/* Only what is needed stays open: a control socket here would hide the spawner's death from its owner. */
static bool keep_only(int *fds, int count) {
    enum { FIRST = 3, ELSEWHERE = 64 };
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0 && (fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, ELSEWHERE)) < 0)
            return false;
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0 && (fds[i] = dup3(fds[i], FIRST + i, O_CLOEXEC)) < 0)
            return false;
    frozen.state_fd = fds[count - 1];
    return syscall(__NR_close_range, FIRST + count, ~0u, 0) == 0;
}

static const char *work(const struct sandbox *sandbox, int *fds, pid_t spawner, struct copied *done) {
    const char *step;
    prctl(PR_SET_NAME, "dutyfree-copier");
    frozen.state_fd = -1;
    if ((step = tie_to_spawner(spawner)) || (sandbox && (step = freeze_begin(&frozen, sandbox))))
        return step;
    fds[COPIER_FDS] = frozen.state_fd;
    if (!keep_only(fds, COPIER_FDS + 1))
        return "close what the copier does not need";
    return (step = give_up_privileges(fds[2], spawner)) ? step : copy_tree(fds[0], fds[1], done);
}

_Noreturn static void copier(const struct sandbox *sandbox, int *fds, pid_t spawner) {
    struct copied done = {0};
    const char *step = work(sandbox, fds, spawner, &done);
    int error = errno;
    freeze_end(&frozen);
    done.error = step ? error : 0;
    snprintf(done.step, sizeof done.step, "%s", step ? step : "");
    _exit(write(fds[3], &done, sizeof done) == sizeof done ? 0 : 71);
}

/* ---- in the spawner ---- */

static void thaw(const struct slot *slot) {
    struct freeze state = {.state_fd = cgroup_open_freezer(&slot->cgroup)};
    freeze_end(&state);
    if (state.state_fd >= 0)
        close(state.state_fd);
}

/* What a copier needs: 0 what is copied, 1 where to, 2 the sandbox's ids, 3 its word at the end. */
static const char *open_all(const struct snapshot_request *request, const char *path, const struct sandbox *sandbox,
                            int *fds) {
    char name[48];
    const char *step;
    snprintf(name, sizeof name, "/proc/%d/ns/user", sandbox->pid);
    if ((fds[2] = open(name, O_RDONLY | O_CLOEXEC)) < 0)
        return "open the sandbox's ids";
    snprintf(name, sizeof name, "/proc/%d/fd/%d", sandbox->pid, UPPER_FD);
    fds[0] = request->source ? layer_open(request->source, fds[2]) : open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fds[0] < 0)
        return request->source ? "open the layer" : "open what the sandbox has written";
    if (request->layer && (step = layer_make(request->layer, fds[0])))
        return step;
    fds[1] = request->layer ? layer_open(request->layer, fds[2]) : layer_open_directory(path, fds[2]);
    return fds[1] < 0 ? "open the new layer" : NULL;
}

static const char *start(struct copying *copying, struct sandbox *sandbox, int *fds) {
    int ends[2];
    pid_t spawner = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0)
        return "make a pipe";
    fds[3] = ends[1];
    copying->pid = fork();
    if (copying->pid == 0)
        copier(copying->of_layer ? NULL : sandbox, fds, spawner);
    if (copying->pid < 0) {
        copying->pid = 0;
        close(ends[0]);
        return "start a copier";
    }
    copying->result_fd = ends[0];
    copying->sandbox = sandbox;
    copying->slot = sandbox->slot;
    return NULL;
}

static struct copying *free_copy(const struct sandbox *sandbox) {
    struct copying *found = NULL;
    for (int i = 0; i < MAX_COPIES; i++) {
        if (copies[i].pid && copies[i].sandbox == sandbox) {
            errno = EBUSY;
            return NULL;
        }
        if (!copies[i].pid)
            found = &copies[i];
    }
    errno = EAGAIN;
    return found;
}

void snapshot_begin(const struct snapshot_request *request, const char *path) {
    struct sandbox *sandbox = find_sandbox(request->sandbox);
    int fds[COPIER_FDS + 1] = {-1, -1, -1, -1, -1};
    const char *step = "find the sandbox";
    errno = ESRCH;
    if (sandbox && sandbox->life == LIVE) {
        struct copying *copying = free_copy(sandbox);
        step = copying ? open_all(request, path, sandbox, fds) : "find a free copier";
        if (!step) {
            *copying = (struct copying){
                .number = request->head.tag, .layer = request->layer, .of_layer = request->source != 0};
            step = start(copying, sandbox, fds);
        }
        int saved = errno;
        if (step && fds[2] >= 0 && request->layer && layer_known[request->layer % MAX_KNOWN] == LAYER_UNKNOWN)
            layer_forget(request->layer);
        for (int i = 0; i < COPIER_FDS; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        errno = saved;
    }
    if (step)
        send_event(EVENT_SAVED, request->head.tag, errno, 0, step);
}

void snapshot_abandon(uint32_t number) {
    for (int i = 0; i < MAX_COPIES; i++)
        if (copies[i].pid && copies[i].number == number)
            kill(copies[i].pid, SIGTERM); /* it thaws, and its end is collected */
}

void snapshot_abandon_of(const struct sandbox *sandbox) {
    for (int i = 0; i < MAX_COPIES; i++)
        if (copies[i].pid && copies[i].sandbox == sandbox) {
            copies[i].sandbox = NULL;
            kill(copies[i].pid, SIGKILL);
            thaw(copies[i].slot);
        }
}

static void report(const struct copying *copying, struct copied *done) {
    char text[112];
    done->step[sizeof done->step - 1] = 0;
    snprintf(text, sizeof text, "%" PRIu64 ";%" PRIu64, done->entries, done->bytes);
    send_event(EVENT_SAVED, copying->number, done->error, 0, done->error ? done->step : text);
}

bool snapshot_collect(pid_t pid, int status) {
    for (int i = 0; i < MAX_COPIES; i++) {
        if (copies[i].pid != pid)
            continue;
        struct copied done;
        bool told = WIFEXITED(status) && WEXITSTATUS(status) == 0 &&
                    read(copies[i].result_fd, &done, sizeof done) == sizeof done;
        if (!told) {
            done = (struct copied){.error = ECANCELED, .step = "copy the sandbox's files: the copier was ended"};
            if (copies[i].sandbox && !copies[i].of_layer)
                freeze_break(copies[i].sandbox);
            else
                thaw(copies[i].slot); /* the copier may have frozen it after we thawed it, for the sandbox to end */
        }
        const char *step;
        if (copies[i].layer && done.error == 0 && (step = layer_seal(copies[i].layer))) {
            done.error = errno;
            snprintf(done.step, sizeof done.step, "%s", step);
        }
        if (copies[i].layer && done.error)
            layer_forget(copies[i].layer);
        close(copies[i].result_fd);
        copies[i].pid = 0;
        report(&copies[i], &done);
        return true;
    }
    return false;
}
