/* Nothing in a sandbox runs while its files are read. By its cgroup, which nobody inside can notice; without cgroups by
 * SIGSTOP, which a parent that waits for stopped children can. On version 1 a frozen process does not even die before
 * it is thawed, so whoever freezes thaws, also when it is killed: see snapshot.c and the sweep in cgroup.c. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

/* A process may be in the middle of a write that the disk is slow with. */
enum { PATIENCE_MS = 5000, PAUSE_US = 100, AGAIN_AFTER = 100 };

static bool expired(uint64_t begun_ns) {
    errno = ETIMEDOUT;
    return monotonic_ns() - begun_ns > PATIENCE_MS * 1000000ull;
}

/* ---- by signals ---- */

static char state_of(pid_t pid, const char *task) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", pid, task);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (size <= 0)
        return 'X';
    text[size] = 0;
    const char *end = strrchr(text, ')');
    return end && end[1] ? end[2] : 'X';
}

static bool stands(pid_t pid) { /* every thread of it */
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    bool all = true;
    for (struct dirent *task; tasks && all && (task = readdir(tasks));)
        all = task->d_name[0] == '.' || strchr("TtZX", state_of(pid, task->d_name)) != NULL;
    if (tasks)
        closedir(tasks);
    return all;
}

static bool is_noted(const struct freeze *freeze, pid_t pid) {
    for (int i = 0; i < freeze->count; i++)
        if (freeze->stopped[i] == pid || freeze->stopped[i] == -pid)
            return true;
    return false;
}

/* Stops a process and notes it; one that stood already is noted as such, by its negative number. */
static bool stop(struct freeze *freeze, pid_t pid) {
    pid_t *stopped = realloc(freeze->stopped, sizeof *stopped * (size_t)(freeze->count + 1));
    if (!stopped)
        return false;
    bool stood = stands(pid);
    freeze->stopped = stopped;
    stopped[freeze->count] = stood ? -pid : pid;
    freeze->count++;
    return stood || kill(pid, SIGSTOP) == 0 || errno == ESRCH;
}

/* Orphans become children of the sandbox's first process, so that all are its descendants. */
static bool stop_children(struct freeze *freeze, pid_t pid, bool *more) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    bool done = true;
    for (struct dirent *task; tasks && done && (task = readdir(tasks));) {
        if (task->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", pid, task->d_name);
        FILE *children = fopen(path, "re");
        for (int child; children && done && fscanf(children, "%d", &child) == 1;)
            if (!is_noted(freeze, child)) {
                *more = true;
                done = stop(freeze, child);
            }
        if (children)
            fclose(children);
    }
    if (tasks)
        closedir(tasks);
    return done;
}

static const char *stop_all(struct freeze *freeze) {
    uint64_t begun_ns = monotonic_ns();
    if (!stop(freeze, freeze->first))
        return "stop the sandbox";
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < freeze->count; i++) {
            if (!stop_children(freeze, abs(freeze->stopped[i]), &more))
                return "stop the sandbox";
            if (!stands(abs(freeze->stopped[i]))) {
                more = true;
                usleep(PAUSE_US);
            }
        }
        if (more && expired(begun_ns))
            return "stop the sandbox";
    }
    return NULL;
}

/* ---- by the cgroup ---- */

const char *freeze_begin(struct freeze *freeze, const struct sandbox *sandbox) {
    *freeze = (struct freeze){.first = sandbox->pid, .state_fd = cgroup_open_freezer(&sandbox->slot->cgroup)};
    if (freeze->state_fd < 0)
        return stop_all(freeze);
    uint64_t begun_ns = monotonic_ns();
    const char *word = cgroup_kind == CGROUP_V2 ? "1" : "FROZEN";
    if (write(freeze->state_fd, word, strlen(word)) < 0)
        return "freeze the sandbox";
    for (int looks = 1; !cgroup_is_frozen(&sandbox->slot->cgroup, freeze->state_fd); looks++) {
        if (expired(begun_ns))
            return "freeze the sandbox";
        usleep(PAUSE_US);
        /* Version 1 tells each process once, and one that is being born or replaced at that moment can miss it. */
        if (looks % AGAIN_AFTER == 0) {
            const char *thaw = cgroup_kind == CGROUP_V2 ? "0" : "THAWED";
            if (write(freeze->state_fd, thaw, strlen(thaw)) < 0 || write(freeze->state_fd, word, strlen(word)) < 0)
                return "freeze the sandbox";
        }
    }
    return NULL;
}

void freeze_end(const struct freeze *freeze) {
    int saved = errno;
    const char *word = cgroup_kind == CGROUP_V2 ? "0" : "THAWED";
    if (freeze->state_fd >= 0 && write(freeze->state_fd, word, strlen(word)) < 0 && freeze->count == 0) {
        errno = saved; /* the cgroup is gone, and with it what was frozen */
        return;
    }
    for (int i = 0; i < freeze->count; i++)
        if (freeze->stopped[i] > 0)
            kill(freeze->stopped[i], SIGCONT);
    errno = saved;
}

void freeze_break(const struct sandbox *sandbox) {
    struct freeze freeze = {.first = sandbox->pid, .state_fd = cgroup_open_freezer(&sandbox->slot->cgroup)};
    if (freeze.state_fd < 0)
        stop_all(&freeze); /* finds them all: those that stand already are noted too */
    for (int i = 0; i < freeze.count; i++)
        freeze.stopped[i] = abs(freeze.stopped[i]);
    freeze_end(&freeze);
    free(freeze.stopped);
    if (freeze.state_fd >= 0)
        close(freeze.state_fd);
}
