/* The last line against kernel memory that no limit counts: queues of sockets, file locks, what overlays remember of
 * directories. While commands run the spawner looks at the kernel's memory as a whole, some forty times a second. Where
 * it grows by more than the sandboxes are charged for, what runs in the sandbox that holds most of such objects is
 * killed, as the kernel does where memory runs out. The same for the machine's table of open files. Nobody is woken
 * while all sandboxes are idle: agents say when they are not. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"
#include "watch.h"

enum {
    TICK_MS = 25,
    AGAIN_MS = 1000,
    BUSY_MS = 2500, /* agents that are busy say so once a second */
    /* What one object may hold, at the most: a connection, a lock, a name in an open directory. */
    SOCKET_BYTES = 128 << 10,
    FEW_SOCKETS = 64, /* are not looked at */
    LOCK_BYTES = 192,
    NAME_BYTES = 320,
    DIRECTORY_ENTRY = 20, /* what a name adds to the size of a directory in memory */
    MOST_FDS = 20000,     /* that are looked at in one sandbox */
    FILE_BYTES = 192,     /* charged for an open file, at the least */
};
#define GROWTH ((int64_t)64 << 20)

int watch_busy_fd = -1;
static int memory_fd = -1, files_fd = -1;
static uint64_t busy_until_ns, next_ns;
static int64_t base, files_base;

void watch_prepare(void) {
    watch_busy_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    memory_fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    files_fd = open("/proc/sys/fs/file-nr", O_RDONLY | O_CLOEXEC);
}

static ssize_t look_again(int fd, char *text, size_t size) {
    ssize_t got = fd < 0 ? -1 : pread(fd, text, size - 1, 0);
    text[got > 0 ? got : 0] = 0;
    return got;
}

/* Bytes that are neither free nor anybody's pages or reclaimable; -1: cannot be told. */
static int64_t kernel_bytes(void) {
    static const char *const others[] = {
        "MemFree:", "Buffers:", "Cached:", "SwapCached:", "AnonPages:", "SReclaimable:"};
    char text[4096];
    long long total, one;
    if (look_again(memory_fd, text, sizeof text) <= 0 || sscanf(text, "MemTotal: %lld", &total) != 1)
        return -1;
    char *at = text;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) { /* in the order of the file */
        if (!(at = strstr(at, others[i])) || sscanf(at + strlen(others[i]), "%lld", &one) != 1)
            return -1;
        total -= one;
    }
    return total << 10;
}

void watch_wake(void) {
    uint64_t count;
    if (read(watch_busy_fd, &count, sizeof count) != sizeof count)
        return;
    uint64_t now = monotonic_ns();
    if (busy_until_ns < now) { /* the first after a quiet time: what is there now is how it should be */
        base = kernel_bytes();
        files_base = 0;
        next_ns = now + TICK_MS * 1000000ull;
    }
    busy_until_ns = now + BUSY_MS * 1000000ull;
}

int watch_timeout(void) {
    uint64_t now = monotonic_ns();
    if (busy_until_ns < now)
        return -1;
    return next_ns <= now ? 0 : (int)((next_ns - now) / 1000000 + 1);
}

/* ---- what a sandbox holds ---- */

static FILE *open_inside(const struct sandbox *sandbox, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/net/%s", sandbox->pid, name);
    return fopen(path, "re");
}

/* Of the table `name`, what nobody may be charged for: queues of datagrams, and connections that no process has (not
 * yet accepted, or closed with data to send), each as if it were full. */
static int64_t queued(const struct sandbox *sandbox, const char *name) {
    enum { TIME_WAIT = 6 };
    char line[512];
    unsigned state, sent, received;
    unsigned long inode;
    long long bytes = 0, first, second;
    FILE *file = open_inside(sandbox, name);
    while (file && fgets(line, sizeof line, file)) {
        if (*name == 'n' && sscanf(line, "%*s %*d %*u %*s %lld %lld", &first, &second) == 2)
            bytes += first + second;
        else if (sscanf(line, " %*d: %*s %*s %x %x:%x %*s %*s %*u %*u %lu", &state, &sent, &received, &inode) == 4)
            bytes += *name == 'u' ? (int64_t)sent + received : inode == 0 && state != TIME_WAIT ? SOCKET_BYTES : 0;
    }
    if (file)
        fclose(file);
    return bytes;
}

/* Of `count` sockets, those in no table: reset by the other side, and still waiting to be accepted. */
static long hidden(const struct sandbox *sandbox, long count) {
    char line[512];
    long one;
    FILE *file = open_inside(sandbox, "protocols");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%*s %*u %ld", &one) == 1)
            count -= one;
    if (file)
        fclose(file);
    return file && count > 0 ? count : 0;
}

static int64_t socket_bytes(const struct sandbox *sandbox) {
    static const char *const tables[] = {"netlink", "udp", "udp6", "tcp", "tcp6"};
    long count = 0;
    FILE *file = sandbox->host_network ? NULL : open_inside(sandbox, "sockstat");
    if (file && fscanf(file, "sockets: used %ld", &count) != 1)
        count = 0;
    if (file)
        fclose(file);
    int64_t bytes = 0;
    for (size_t i = 0; count > FEW_SOCKETS && i < sizeof tables / sizeof *tables; i++)
        bytes += queued(sandbox, tables[i]);
    if (count > FEW_SOCKETS)
        bytes += (int64_t)hidden(sandbox, count) * SOCKET_BYTES;
    return bytes - (int64_t)cgroup_socket_bytes(&sandbox->slot->cgroup);
}

/* Adds up what `count` says of each descriptor in the sandbox, which it finds by /proc/PID/<kind>/ inside. */
static int64_t sum_of_fds(const struct sandbox *sandbox, const char *kind,
                          int64_t (*count)(int directory, const char *fd)) {
    char path[64];
    int fds = 0;
    int64_t sum = 0;
    snprintf(path, sizeof path, "/proc/%d/root/proc", sandbox->pid);
    DIR *processes = opendir(path);
    for (struct dirent *one; processes && fds < MOST_FDS && (one = readdir(processes));) {
        if (one->d_name[0] < '1' || one->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%d/root/proc/%.20s/%s", sandbox->pid, one->d_name, kind);
        DIR *listing = opendir(path);
        for (struct dirent *fd; listing && fds < MOST_FDS && (fd = readdir(listing)); fds++)
            if (fd->d_name[0] != '.')
                sum += count(dirfd(listing), fd->d_name);
        if (listing)
            closedir(listing);
    }
    if (processes)
        closedir(processes);
    return sum;
}

static int64_t names_of(int directory, const char *fd) {
    struct stat st;
    return fstatat(directory, fd, &st, 0) == 0 && S_ISDIR(st.st_mode) ? st.st_size / DIRECTORY_ENTRY : 0;
}

static int64_t directory_bytes(const struct sandbox *sandbox) {
    return sum_of_fds(sandbox, "fd", names_of) * NAME_BYTES;
}

static int64_t locks_of(int directory, const char *fd) {
    char line[256];
    int64_t count = 0;
    int info = openat(directory, fd, O_RDONLY | O_CLOEXEC);
    FILE *file = info < 0 ? NULL : fdopen(info, "r");
    while (file && fgets(line, sizeof line, file))
        count += strncmp(line, "lock:", 5) == 0;
    if (file)
        fclose(file);
    return count;
}

static int64_t lock_bytes(const struct sandbox *sandbox) {
    return sum_of_fds(sandbox, "fdinfo", locks_of) * LOCK_BYTES;
}

/* Of the whole machine. /proc/locks would tell whose they are, but holds all of them up while it is read. */
static int64_t all_lock_bytes(void) {
    char line[256], name[32];
    long long count, size, bytes = 0;
    FILE *file = fopen("/proc/slabinfo", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%31s %lld %*u %lld", name, &count, &size) == 3 &&
            (strcmp(name, "file_lock_cache") == 0 || strcmp(name, "filelock_cache") == 0))
            bytes = count * size;
    if (file)
        fclose(file);
    return bytes;
}

/* ---- whose it is ---- */

/* Its agent kills all else in it. If that did not help, the sandbox ends. */
static void relieve(struct sandbox *sandbox) {
    uint64_t now = monotonic_ns();
    if (sandbox->relieved_ns && now - sandbox->relieved_ns < AGAIN_MS * 1000000ull) {
        end_sandbox(sandbox, GONE_OOM);
        return;
    }
    sandbox->relieved_ns = now;
    kill(sandbox->pid, SIGUSR1);
}

/* Relieves the sandbox that holds most, if what all may hold explains the growth. */
static bool relieve_largest(int64_t (*held)(const struct sandbox *), int64_t growth) {
    struct sandbox *largest = NULL, *one;
    int64_t most = 0, all = 0;
    for (uint32_t i = 0; (one = live_sandbox(i)); i++) {
        int64_t bytes = one->life == LIVE ? held(one) : 0;
        if (bytes > 0)
            all += bytes;
        if (bytes > most) {
            most = bytes;
            largest = one;
        }
    }
    if (!largest || all < growth)
        return false;
    relieve(largest);
    return true;
}

/* What sandboxes have been charged for since the last look; that is theirs to use. */
static int64_t charged_growth(void) {
    struct sandbox *one;
    int64_t growth = 0;
    for (uint32_t i = 0; (one = live_sandbox(i)); i++) {
        int64_t charged = one->life == LIVE ? (int64_t)cgroup_kernel_bytes(&one->slot->cgroup) : 0;
        if (charged > one->charged)
            growth += charged - one->charged;
        one->charged = charged;
    }
    return growth;
}

static void look_at_memory(void) {
    int64_t now = kernel_bytes();
    if (now < base || base < 0)
        base = now;
    if (now - base <= GROWTH)
        return;
    int64_t growth = now - base - charged_growth(), locks = all_lock_bytes();
    base = now;
    if (growth <= GROWTH / 2)
        return;
    if ((locks < growth / 2 || !relieve_largest(lock_bytes, growth / 2)) && !relieve_largest(socket_bytes, growth / 2))
        relieve_largest(directory_bytes, growth / 2);
}

static int64_t charged_bytes(const struct sandbox *sandbox) {
    return (int64_t)cgroup_kernel_bytes(&sandbox->slot->cgroup);
}

static void look_at_files(void) {
    char text[128];
    long long used, most;
    if (look_again(files_fd, text, sizeof text) <= 0 || sscanf(text, "%lld %*d %lld", &used, &most) != 2)
        return;
    if (used < most / 2)
        files_base = 0; /* the last relief has helped */
    if (used < most / 4 * 3 || used < files_base + most / 16)
        return;
    if (relieve_largest(charged_bytes, most / 8 * FILE_BYTES))
        files_base = used;
}

void watch_look(void) {
    uint64_t now = monotonic_ns();
    if (busy_until_ns < now || now < next_ns)
        return;
    look_at_memory();
    look_at_files();
    next_ns = monotonic_ns() + TICK_MS * 1000000ull;
}
