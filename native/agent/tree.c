/* Finding and killing all processes of a command, whatever they did to hide.
 *
 * Before exec each command's first process gets a RLIMIT_RTTIME that nobody else has. Every descendant inherits it, it
 * has no effect on processes without a real-time policy, and it can be lowered but not raised again. Marks are given
 * out downwards, so no process can take the mark of a command older than its own. All processes are below us (PID 1 or
 * a subreaper), so a scan looks at our descendants only; one whose mark is not ours belongs where its parent does.
 *
 * One that forks and exits all the time can be gone whenever it is looked at. Where all processes of the pid namespace
 * are ours, one call kills or stops them all, forks under way included. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

#define MARK_BASE (1ull << 40)
#define SERIAL_MASK 0xffffffffull
enum { ROUNDS = 64, BUSY_LOOKS = 4, LAST_WAITS = 200 };

struct member {
    pid_t pid, parent, session;
    char state;
    bool below;     /* a descendant of ours */
    uint64_t owner; /* a mark; 0: nobody's */
};

struct scan {
    struct member *members;
    size_t count, room;
};

static uint64_t high_bits, next_serial = SERIAL_MASK;
static bool marks_work, whole;
static int load_fd = -1;

void tree_open(void) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    struct rlimit own;
    uint32_t random = 0;
    if (getrlimit(RLIMIT_RTTIME, &own) < 0 || getrandom(&random, sizeof random, GRND_NONBLOCK) < 0)
        return;
    /* Inside another marked tree the marks have to be below that one's. */
    uint64_t most = own.rlim_max == RLIM_INFINITY ? 1ull << 62 : own.rlim_max;
    if (most < MARK_BASE + 2 * (SERIAL_MASK + 1))
        return;
    uint64_t choices = (most - MARK_BASE) / (SERIAL_MASK + 1) - 1;
    high_bits = MARK_BASE + (random % choices) * (SERIAL_MASK + 1);
    marks_work = true;
}

void tree_whole(void) {
    whole = true;
}

bool tree_is_whole(void) {
    return whole;
}

long tree_newest(void) {
    char text[128];
    if (load_fd < 0)
        load_fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    ssize_t got = load_fd < 0 ? -1 : pread(load_fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = 0;
    const char *last = strrchr(text, ' ');
    return last ? strtol(last, NULL, 10) : -1;
}

bool tree_marks_work(void) {
    return marks_work;
}

uint64_t tree_next_mark(void) {
    if (next_serial < 2)
        marks_work = false; /* four thousand million commands later */
    return high_bits + next_serial--;
}

bool tree_is_issued(uint64_t mark) {
    return marks_work && (mark & ~SERIAL_MASK) == high_bits && (mark & SERIAL_MASK) > next_serial;
}

static ssize_t read_small(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t got = read(fd, text, size - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    return got;
}

uint64_t tree_mark_of(pid_t pid) {
    struct rlimit limit;
    if (prlimit(pid, RLIMIT_RTTIME, NULL, &limit) == 0)
        return limit.rlim_max;
    /* Another user's process and no CAP_SYS_RESOURCE: the file is open to all. */
    char path[40], text[4096];
    snprintf(path, sizeof path, "/proc/%d/limits", (int)pid);
    if (read_small(path, text, sizeof text) <= 0)
        return 0;
    const char *line = strstr(text, "Max realtime timeout");
    return line ? strtoull(line + 20, NULL, 10) : 0;
}

static bool read_stat(pid_t pid, struct member *member) {
    char path[40], text[512];
    int parent, session;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (read_small(path, text, sizeof text) <= 0)
        return false;
    const char *after_name = strrchr(text, ')'); /* the name may hold anything, also ") R 1" */
    if (!after_name || sscanf(after_name + 1, " %c %d %*d %d", &member->state, &parent, &session) != 3)
        return false;
    member->pid = pid;
    member->parent = parent;
    member->session = session;
    return true;
}

static int by_pid(const void *a, const void *b) {
    const struct member *left = a, *right = b;
    return (left->pid > right->pid) - (left->pid < right->pid);
}

static struct member *find(const struct scan *scan, pid_t pid) {
    struct member key = {.pid = pid};
    return scan->count ? bsearch(&key, scan->members, scan->count, sizeof key, by_pid) : NULL;
}

static void collect(struct scan *scan) {
    scan->count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        struct member member = {0};
        if (pid <= 0 || pid == getpid() || !read_stat(pid, &member))
            continue;
        if (scan->count == scan->room) {
            size_t room = scan->room ? 2 * scan->room : 64;
            struct member *grown = realloc(scan->members, room * sizeof *grown);
            if (!grown)
                break;
            scan->members = grown;
            scan->room = room;
        }
        scan->members[scan->count++] = member;
    }
    if (proc)
        closedir(proc);
    if (scan->count)
        qsort(scan->members, scan->count, sizeof *scan->members, by_pid);
}

/* Whose a child of ours is that carries no mark of ours. */
static uint64_t owner_of_child(const struct member *member, uint64_t mark, pid_t leader) {
    const struct process *process = process_find(member->pid);
    if (process)
        return process->mark;
    if (member->session == leader || marks_work || !process_count())
        return mark;
    return 0;
}

static void settle_one(const struct scan *scan, struct member *member, uint64_t mark, pid_t leader, bool *changed) {
    const struct member *parent = find(scan, member->parent);
    bool child = member->parent == getpid();
    if (member->below || !(child || (parent && parent->below)))
        return;
    member->below = *changed = true;
    uint64_t own = tree_mark_of(member->pid);
    if (tree_is_issued(own))
        member->owner = own;
    else
        member->owner = child ? owner_of_child(member, mark, leader) : parent->owner;
}

static void look(struct scan *scan, uint64_t mark, pid_t leader) {
    collect(scan);
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < scan->count; i++)
            settle_one(scan, &scan->members[i], mark, leader, &changed);
    }
}

static bool is_target(const struct member *member, uint64_t mark, pid_t spare) {
    bool mine = member->below && (!mark || member->owner == mark) && member->pid != spare;
    return mine && member->state != 'Z' && member->state != 'X';
}

struct sent { /* pids that had the signal of this phase */
    pid_t *pids;
    size_t count, room;
};

static bool remember(struct sent *sent, pid_t pid) {
    for (size_t i = 0; i < sent->count; i++)
        if (sent->pids[i] == pid)
            return false;
    if (sent->count == sent->room) {
        size_t room = sent->room ? 2 * sent->room : 64;
        pid_t *grown = realloc(sent->pids, room * sizeof *grown);
        if (!grown)
            return true;
        sent->pids = grown;
        sent->room = room;
    }
    sent->pids[sent->count++] = pid;
    return true;
}

/* Signals every target not yet signalled, and looks again, until a look finds none. A stopped process does not fork,
 * nor does one with SIGKILL pending, so each phase ends; the rounds bound it all the same. True if the last look has
 * missed nobody. */
static bool sweep(struct scan *scan, int signal, uint64_t mark, pid_t leader, pid_t spare) {
    struct sent sent = {0};
    bool steady = false;
    for (int round = 0, busy = 0; !steady && round < ROUNDS && busy < (whole ? BUSY_LOOKS : 1); round++) {
        bool fresh = false;
        long newest = tree_newest();
        look(scan, mark, leader);
        for (size_t i = 0; i < scan->count; i++)
            if (is_target(&scan->members[i], mark, spare) && remember(&sent, scan->members[i].pid)) {
                kill(scan->members[i].pid, signal);
                fresh = true;
            }
        steady = !fresh && tree_newest() == newest;
        busy += !fresh;
    }
    free(sent.pids);
    return steady;
}

static bool stands(const struct scan *scan, pid_t pid) {
    const struct member *member = find(scan, pid);
    return member && member->state == 'T';
}

/* Others fork all the time, or one of those that are to die does. Everything stands for the length of a look: the
 * kernel signals all at once, so that no fork slips by. */
static void kill_standing(struct scan *scan, uint64_t mark, pid_t leader, pid_t spare) {
    struct scan before = {0};
    collect(&before);
    kill(-1, SIGSTOP);
    sweep(scan, SIGKILL, mark, leader, spare);
    for (size_t i = 0; i < scan->count; i++)
        if (!stands(&before, scan->members[i].pid))
            kill(scan->members[i].pid, SIGCONT);
    free(before.members);
}

void tree_kill(uint64_t mark, pid_t leader, pid_t spare) {
    struct scan scan = {0};
    if (whole && !spare && process_only(leader)) {
        kill(-1, SIGKILL);
        return;
    }
    sweep(&scan, SIGSTOP, mark, leader, spare);
    if (!sweep(&scan, SIGKILL, mark, leader, spare) && whole)
        kill_standing(&scan, mark, leader, spare);
    free(scan.members);
}

enum { INTERRUPT_IGNORED, INTERRUPT_CAUGHT, INTERRUPT_DEADLY };

static int interrupt_means(pid_t pid) {
    char path[40], text[4096];
    unsigned long long ignored, caught, bit = 1ull << (SIGINT - 1);
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    const char *line = read_small(path, text, sizeof text) > 0 ? strstr(text, "\nSigIgn:") : NULL;
    if (!line || sscanf(line, "\nSigIgn: %llx\nSigCgt: %llx", &ignored, &caught) != 2 || ignored & bit)
        return INTERRUPT_IGNORED;
    return caught & bit ? INTERRUPT_CAUGHT : INTERRUPT_DEADLY;
}

bool tree_interrupt(uint64_t mark, pid_t leader) {
    struct scan scan = {0};
    bool left = false;
    look(&scan, mark, leader);
    for (size_t i = 0; i < scan.count; i++) {
        pid_t pid = scan.members[i].pid;
        bool mine = is_target(&scan.members[i], mark, leader) && getpgid(pid) == leader;
        int means = mine ? interrupt_means(pid) : INTERRUPT_IGNORED;
        if (means == INTERRUPT_DEADLY)
            kill(pid, SIGINT);
        left = left || means != INTERRUPT_IGNORED;
    }
    free(scan.members);
    return left;
}

bool tree_alive(uint64_t mark, pid_t leader, pid_t spare) {
    struct scan scan = {0};
    bool alive = false;
    look(&scan, mark, leader);
    for (size_t i = 0; i < scan.count; i++)
        alive = alive || is_target(&scan.members[i], mark, spare);
    free(scan.members);
    return alive;
}

void tree_kill_all(void) {
    struct timespec step = {.tv_nsec = 10 * (long)MILLISECOND_NS};
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    tree_kill(0, 0, 0);
    /* Until all are gone; one in an uninterruptible sleep may take longer than anybody should wait. */
    for (int i = 0; i < LAST_WAITS; i++) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0)
            return;
        sigtimedwait(&child, NULL, &step);
    }
}
