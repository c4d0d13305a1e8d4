/* Limits by cgroups: version 1 (three hierarchies), version 2 (one), or none.
 *
 * Layout: <hierarchy>/<where we are>/dutyfree-<pid>-<start time>/<slot>. The name tells whose it is: at the next start
 * the directories of owners that are no more are removed, those of living ones never. On version 2 our own cgroup
 * cannot have both processes and limited children, so there the directory hangs below the hierarchy's root. Slots keep
 * their cgroups from one sandbox to the next: page cache stays charged to a cgroup, and removing one that has any
 * leaves a dying one. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spawner.h"

/* The freezer first: what a killed owner left frozen must be thawed before it can end. */
enum { FREEZER, MEMORY, PIDS, CPU, CONTROLLERS };
static const char *const controllers[CONTROLLERS] = {"freezer", "memory", "pids", "cpu"};

enum cgroup_kind cgroup_kind;
char cgroup_lost[96];
static int base[CONTROLLERS] = {-1, -1, -1, -1}; /* <hierarchy>/<where we are> */
static int ours[CONTROLLERS] = {-1, -1, -1, -1}; /* …/dutyfree-<pid>-<start>; -1: not there (the freezer may be) */
static char our_name[64];

/* Field 22 of /proc/PID/stat; the command's name (field 2) may hold spaces and parentheses. */
static uint64_t start_time(pid_t pid) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return 0;
    text[size] = 0;
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static void remove_tree(int parent, const char *name) {
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = fd < 0 ? NULL : fdopendir(fd);
    if (!listing)
        return;
    for (struct dirent *entry; (entry = readdir(listing));)
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
            remove_tree(fd, entry->d_name);
    /* v1 only: gives the page cache back first, so that no dying cgroup stays. Absent on v2, where it is not needed:
     * there the charge moves to the parent. */
    write_file(fd, "memory.force_empty", "0");
    bool thawed = write_file(fd, "freezer.state", "THAWED");
    closedir(listing);
    /* What was frozen has been killed, and dies now that it is thawed. */
    for (int tries = 0; unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno == EBUSY && thawed && tries < 500; tries++)
        usleep(1000);
}

static void sweep(int parent) {
    int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = fd < 0 ? NULL : fdopendir(fd);
    if (!listing)
        return;
    for (struct dirent *entry; (entry = readdir(listing));) {
        int pid;
        uint64_t started;
        if (sscanf(entry->d_name, "dutyfree-%d-%" SCNu64, &pid, &started) == 2 && start_time(pid) != started)
            remove_tree(parent, entry->d_name);
    }
    closedir(listing);
}

/* Where the hierarchy with this controller ("" for version 2) is mounted; root of the mount must be the hierarchy's. */
static bool find_mount(const char *controller, char *out, size_t size) {
    FILE *table = fopen("/proc/self/mountinfo", "re");
    char line[4096];
    bool found = false;
    while (table && !found && fgets(line, sizeof line, table)) {
        char root[512], point[512], type[32], options[512];
        char *dash = strstr(line, " - ");
        if (!dash || sscanf(line, "%*s %*s %*s %511s %511s", root, point) != 2 ||
            sscanf(dash + 3, "%31s %*s %511s", type, options) != 2)
            continue;
        if (*controller == 0)
            found = strcmp(type, "cgroup2") == 0;
        else if (strcmp(type, "cgroup") == 0)
            for (char *save, *word = strtok_r(options, ",", &save); word && !found; word = strtok_r(NULL, ",", &save))
                found = strcmp(word, controller) == 0;
        if (found)
            snprintf(out, size, "%s", point);
    }
    if (table)
        fclose(table);
    return found;
}

/* Our own place in the hierarchy of this controller, from /proc/self/cgroup. */
static void own_place(const char *controller, char *out, size_t size) {
    FILE *table = fopen("/proc/self/cgroup", "re");
    char line[1024];
    snprintf(out, size, "/");
    while (table && fgets(line, sizeof line, table)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        for (char *save, *word = strtok_r(list + 1, ",", &save); word; word = strtok_r(NULL, ",", &save))
            if (strcmp(word, controller) == 0)
                snprintf(out, size, "%s", path);
    }
    if (table)
        fclose(table);
}

static int make_ours(int parent) {
    sweep(parent);
    if (mkdirat(parent, our_name, 0755) != 0)
        return -1;
    return openat(parent, our_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void give_up(const char *why) {
    for (int i = 0; i < CONTROLLERS; i++) {
        if (ours[i] >= 0) {
            unlinkat(base[i], our_name, AT_REMOVEDIR);
            close(ours[i]);
        }
        base[i] = ours[i] = -1;
    }
    cgroup_kind = CGROUP_NONE;
    snprintf(cgroup_lost, sizeof cgroup_lost, "%s", why);
}

static bool prepare_v2(void) {
    char point[512];
    if (!find_mount("", point, sizeof point))
        return false;
    int root = open(point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || !write_file(root, "cgroup.subtree_control", "+memory +pids +cpu")) {
        if (root >= 0)
            close(root);
        return false;
    }
    int mine = make_ours(root);
    if (mine < 0 || !write_file(mine, "cgroup.subtree_control", "+memory +pids +cpu")) {
        close(root);
        return false;
    }
    for (int i = 0; i < CONTROLLERS; i++) {
        base[i] = root;
        ours[i] = mine;
    }
    cgroup_kind = CGROUP_V2;
    return true;
}

static bool prepare_v1(void) {
    for (int i = 0; i < CONTROLLERS; i++) {
        char point[512], place[512], path[1100];
        if (!find_mount(controllers[i], point, sizeof point)) {
            if (i == FREEZER)
                continue;
            return false;
        }
        own_place(controllers[i], place, sizeof place);
        snprintf(path, sizeof path, "%s%s", point, place);
        base[i] = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if ((base[i] < 0 || (ours[i] = make_ours(base[i])) < 0) && i != FREEZER)
            return false;
    }
    cgroup_kind = CGROUP_V1;
    return true;
}

void cgroup_prepare(const char *kind) {
    bool any = strcmp(kind, "auto") == 0;
    snprintf(our_name, sizeof our_name, "dutyfree-%d-%" PRIu64, getpid(), start_time(getpid()));
    if ((any || strcmp(kind, "v2") == 0) && prepare_v2())
        return;
    if ((any || strcmp(kind, "v1") == 0) && prepare_v1())
        return;
    int error = errno;
    char why[96];
    snprintf(why, sizeof why, "no writable cgroup hierarchy with memory, pids and cpu (%s)", strerror(error));
    give_up(strcmp(kind, "none") == 0 ? "cgroups were switched off" : why);
}

int cgroup_open(const struct cgroup *cgroup) {
    char name[16];
    snprintf(name, sizeof name, "%u", cgroup->number);
    return openat(ours[MEMORY], name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool cgroup_make(struct cgroup *cgroup, uint32_t number) {
    char name[16];
    *cgroup = (struct cgroup){.number = number};
    if (cgroup_kind == CGROUP_NONE)
        return true;
    snprintf(name, sizeof name, "%u", number);
    for (int i = 0; i < (cgroup_kind == CGROUP_V2 ? 1 : CONTROLLERS); i++)
        if (ours[i] >= 0 && mkdirat(ours[i], name, 0755) != 0 && errno != EEXIST)
            return false;
    return true;
}

static bool write_text(const struct cgroup *cgroup, int controller, const char *name, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "%u/%s", cgroup->number, name);
    return write_file(ours[controller], path, text);
}

static bool write_number(const struct cgroup *cgroup, int controller, const char *name, uint64_t value,
                         const char *unlimited) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return write_text(cgroup, controller, name, value ? text : unlimited);
}

/* Version 1 counts what is queued in TCP and UDP sockets apart, and only once it has a limit. All of the machine's TCP
 * shares one bound too: one sandbox gets an eighth of it. */
static void limit_sockets(const struct cgroup *cgroup, uint64_t bytes) {
    static uint64_t machine;
    if (machine == 0)
        machine = read_number("/proc/sys/net/ipv4/tcp_mem", 2, 1 << 20) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t share = bytes && bytes / 4 < machine / 8 ? bytes / 4 : machine / 8;
    write_number(cgroup, MEMORY, "memory.kmem.tcp.limit_in_bytes", share, "-1"); /* not every kernel has it */
}

static bool limit_memory(const struct cgroup *cgroup, uint64_t bytes) {
    if (cgroup_kind == CGROUP_V2) {
        write_text(cgroup, MEMORY, "memory.swap.max", bytes ? "0" : "max"); /* absent without swap accounting */
        return write_number(cgroup, MEMORY, "memory.max", bytes, "max");
    }
    limit_sockets(cgroup, bytes);
    /* memory+swap (absent without swap accounting) may never be below memory, so the order depends on the direction. */
    bool up = bytes == 0 || (cgroup->last.memory_bytes && bytes > cgroup->last.memory_bytes);
    if (up)
        write_number(cgroup, MEMORY, "memory.memsw.limit_in_bytes", bytes, "-1");
    bool done = write_number(cgroup, MEMORY, "memory.limit_in_bytes", bytes, "-1");
    if (!up)
        write_number(cgroup, MEMORY, "memory.memsw.limit_in_bytes", bytes, "-1");
    return done;
}

static bool limit_cpu(const struct cgroup *cgroup, uint64_t quota_us) {
    if (cgroup_kind == CGROUP_V1)
        return write_number(cgroup, CPU, "cpu.cfs_quota_us", quota_us, "-1");
    char text[48];
    snprintf(text, sizeof text, "%" PRIu64 " 100000", quota_us);
    return write_text(cgroup, CPU, "cpu.max", quota_us ? text : "max 100000");
}

bool cgroup_limit(struct cgroup *cgroup, const struct limits *limits) {
    if (cgroup_kind == CGROUP_NONE)
        return true;
    if (limits->memory_bytes != cgroup->last.memory_bytes && !limit_memory(cgroup, limits->memory_bytes))
        return false;
    cgroup->last.memory_bytes = limits->memory_bytes;
    if (limits->pids != cgroup->last.pids && !write_number(cgroup, PIDS, "pids.max", limits->pids, "max"))
        return false;
    cgroup->last.pids = limits->pids;
    if (limits->cpu_quota_us != cgroup->last.cpu_quota_us && !limit_cpu(cgroup, limits->cpu_quota_us))
        return false;
    cgroup->last.cpu_quota_us = limits->cpu_quota_us;
    return true;
}

bool cgroup_join(const struct cgroup *cgroup, pid_t pid) {
    if (cgroup_kind != CGROUP_V1)
        return true;
    for (int i = 0; i < CONTROLLERS; i++)
        if (ours[i] >= 0 && !write_number(cgroup, i, "cgroup.procs", (uint64_t)pid, ""))
            return false;
    return true;
}

int cgroup_open_oom(const struct cgroup *cgroup) {
    char path[48];
    if (cgroup_kind == CGROUP_NONE)
        return -1;
    snprintf(path, sizeof path, "%u/%s", cgroup->number,
             cgroup_kind == CGROUP_V2 ? "memory.events" : "memory.oom_control");
    return openat(ours[MEMORY], path, O_RDONLY | O_CLOEXEC);
}

uint64_t cgroup_oom_kills(int oom_fd) {
    char text[512];
    ssize_t size = oom_fd < 0 ? -1 : pread(oom_fd, text, sizeof text - 1, 0);
    if (size <= 0)
        return 0;
    text[size] = 0;
    const char *at = strstr(text, "oom_kill ");
    return at ? strtoull(at + strlen("oom_kill "), NULL, 10) : 0;
}

int cgroup_open_freezer(const struct cgroup *cgroup) {
    char path[48];
    if (cgroup_kind == CGROUP_NONE || ours[FREEZER] < 0)
        return -1;
    snprintf(path, sizeof path, "%u/%s", cgroup->number, cgroup_kind == CGROUP_V2 ? "cgroup.freeze" : "freezer.state");
    return openat(ours[FREEZER], path, O_RDWR | O_CLOEXEC);
}

static bool read_text(const struct cgroup *cgroup, int controller, const char *name, char *text, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "%u/%s", cgroup->number, name);
    int fd = openat(ours[controller], path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, size - 1);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    return got > 0;
}

bool cgroup_is_frozen(const struct cgroup *cgroup, int freezer_fd) {
    char text[128];
    if (cgroup_kind == CGROUP_V1) { /* reading is also what moves it on from FREEZING */
        ssize_t size = pread(freezer_fd, text, sizeof text, 0);
        return size >= 6 && memcmp(text, "FROZEN", 6) == 0;
    }
    int fd = openat(ours[FREEZER], (snprintf(text, sizeof text, "%u/cgroup.events", cgroup->number), text),
                    O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[size > 0 ? size : 0] = 0;
    return strstr(text, "frozen 1") != NULL;
}

void cgroup_describe(const struct cgroup *cgroup, char *text, size_t size) {
    static const struct {
        int controller;
        const char *v1, *v2;
    } shown[] = {{MEMORY, "memory.limit_in_bytes", "memory.max"},
                 {PIDS, "pids.max", "pids.max"},
                 {PIDS, "pids.current", "pids.current"},
                 {CPU, "cpu.cfs_quota_us", "cpu.max"}};
    char value[64];
    size_t used = 0;
    *text = 0;
    for (size_t i = 0; i < sizeof shown / sizeof *shown && cgroup_kind != CGROUP_NONE; i++) {
        const char *name = cgroup_kind == CGROUP_V1 ? shown[i].v1 : shown[i].v2;
        if (read_text(cgroup, shown[i].controller, name, value, sizeof value) && used < size)
            used += (size_t)snprintf(text + used, size - used, " %s=%s", shown[i].v2, value);
    }
}

static uint64_t number_of(const struct cgroup *cgroup, const char *name) {
    char text[32];
    return cgroup_kind != CGROUP_NONE && read_text(cgroup, MEMORY, name, text, sizeof text) ? strtoull(text, NULL, 10)
                                                                                            : 0;
}

/* Of version 2's statistics. */
static uint64_t statistic(const struct cgroup *cgroup, const char *wanted) {
    char path[32], line[128], name[64];
    unsigned long long bytes = 0, one;
    snprintf(path, sizeof path, "%u/memory.stat", cgroup->number);
    int fd = cgroup_kind == CGROUP_V2 ? openat(ours[MEMORY], path, O_RDONLY | O_CLOEXEC) : -1;
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%63s %llu", name, &one) == 2 && strcmp(name, wanted) == 0)
            bytes = one;
    if (file)
        fclose(file);
    return bytes;
}

uint64_t cgroup_socket_bytes(const struct cgroup *cgroup) {
    return cgroup_kind == CGROUP_V1 ? number_of(cgroup, "memory.kmem.tcp.usage_in_bytes") : statistic(cgroup, "sock");
}

uint64_t cgroup_kernel_bytes(const struct cgroup *cgroup) {
    uint64_t objects =
        cgroup_kind == CGROUP_V1 ? number_of(cgroup, "memory.kmem.usage_in_bytes") : statistic(cgroup, "kernel");
    return objects + cgroup_socket_bytes(cgroup);
}

void cgroup_remove_all(void) {
    for (int i = 0; i < CONTROLLERS && cgroup_kind != CGROUP_NONE; i++)
        if (ours[i] >= 0)
            remove_tree(base[i], our_name);
}
