/* Blanks: children cloned into fresh namespaces ahead of need, with everything prepared that does not depend on what is
 * ordered: ids, cgroups, loopback, /proc, /dev. They run only code of ours until they are ordered to be a sandbox. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#include "../agent/agent.h"
#include "mounts.h"
#include "spawner.h"

/* ---- in the child ---- */

static const char *become_root_inside(void) {
    if (powers.idmap && setgroups(0, NULL) != 0)
        return "drop groups";
    if (setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0)
        return "become root inside";
    /* After the ids: changing them clears it. Before anything else: from here on the spawner's death is ours. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return "tie to the spawner's life";
    return NULL;
}

/* What the kernel keeps for sockets without charging it to anybody: less of it, where this kernel lets a namespace say.
 */
static const char *bound_network(void) {
    static const char *const bounds[][2] = {
        {"proc/sys/net/core/tstamp_allow_data", "0"}, /* no copies of what was sent in error queues */
        {"proc/sys/net/core/somaxconn", "512"},       /* connections that nobody has accepted */
    };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (!write_file(AT_FDCWD, bounds[i][0], bounds[i][1]) && errno != ENOENT && errno != EACCES)
            return "bound what sockets keep";
    return NULL;
}

static const char *prepare_network(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) != 0)
        return "bring up loopback";
    close(fd);
    /* No capability is needed, or given, for low ports. By the sandbox's own /proc: the host's keeps an entry for each
     * network namespace under one name, and looking one up walks over all of them. */
    if (!write_file(AT_FDCWD, "proc/sys/net/ipv4/ip_unprivileged_port_start", "0"))
        return "open low ports";
    return bound_network();
}

static bool protect(const char *path, uint64_t attributes, unsigned recursion) {
    struct mount_attr change = {.attr_set = attributes};
    return mount_setattr_(AT_FDCWD, path, recursion, &change) == 0;
}

static const char *mask_proc(void) {
    /* Most of these are out of reach already, by ownership; masks keep it so if a kernel errs, and hide the host. */
    static const struct {
        const char *name, *cover; /* NULL: itself, read-only */
    } masks[] = {{"kcore", "/dev/null"},
                 {"keys", "/dev/null"},
                 {"key-users", "/dev/null"},
                 {"kmsg", "/dev/null"},
                 {"sched_debug", "/dev/null"},
                 {"sysrq-trigger", "/dev/null"},
                 {"timer_list", "/dev/null"},
                 {"cmdline", "/dev/null"},
                 {"locks", "/dev/null"}, /* while it is read, nobody on the machine locks a file */
                 {"acpi", "disk"},
                 {"scsi", "disk"},
                 {"pressure", NULL},
                 {"bus", NULL},
                 {"fs", NULL},
                 {"irq", NULL},
                 {"sys", NULL}};
    char path[32];
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        snprintf(path, sizeof path, "proc/%s", masks[i].name);
        if ((mount(masks[i].cover ? masks[i].cover : path, path, NULL, MS_BIND, NULL) != 0 ||
             !protect(path, MOUNT_ATTR_RDONLY, 0)) &&
            errno != ENOENT)
            return "mask a part of /proc";
    }
    return NULL;
}

static const char *bind_read_only(const char *from, const char *to) {
    if (mount(from, to, NULL, MS_BIND | MS_REC, NULL) != 0 ||
        !protect(to, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, AT_RECURSIVE))
        return "bind a view of the system";
    return NULL;
}

struct scratch scratch_expected = {.bytes = 16 << 20, .files = 4096};

void scratch_options(const struct scratch *scratch, char *options, size_t size) {
    enum { OWN_FILES = 17 }; /* the stage and the overlay need these themselves */
    unsigned long long bytes = scratch->bytes, files = scratch->files ? scratch->files + OWN_FILES : 0;
    snprintf(options, size, "mode=755,size=%llu,nr_inodes=%llu", bytes, files); /* 0: no limit */
}

/* The stage: the sandbox's scratch space, which is also the root that the blank waits in. */
static const char *prepare_stage(bool host_network) {
    static const char *const places[] = {"upper", "work", "shm", "new", "proc", "dev", "sys", "disk", "l"};
    const char *step;
    char name[16];
    umask(0);
    char options[96];
    scratch_options(&scratch_expected, options, sizeof options);
    if (mount("scratch", "/stage", "tmpfs", MS_NOSUID | MS_NODEV, options) != 0 || chdir("/stage") != 0)
        return "mount scratch space";
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (mkdir(places[i], 0755) != 0)
            return "make the stage's directories";
    if (chmod("shm", 01777) != 0)
        return "open /dev/shm to all";
    for (int i = 0; i < 4; i++) { /* enough for most images; birth makes more */
        snprintf(name, sizeof name, "l/%d", i);
        if (mkdir(name, 0755) != 0)
            return "make the stage's directories";
    }
    if (mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
        return "mount /proc";
    if (!host_network && (step = prepare_network()))
        return step;
    if ((step = mask_proc()) || (step = bind_read_only("/dev", "dev")) || (step = bind_read_only("/sys", "sys")))
        return step;
    /* The machine has 3,072 terminals for all who are not its own: 48 greedy sandboxes take them. */
    if (mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,max=64") != 0)
        return "mount /dev/pts";
    if (mount("shm", "dev/shm", NULL, MS_BIND, NULL) != 0)
        return "bind /dev/shm";
    if (syscall(__NR_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
        return "pivot to the stage";
    return keep_upper("/upper") ? NULL : "open the scratch space";
}

bool keep_upper(const char *path) {
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool kept = fd >= 0 && (fd == UPPER_FD || dup3(fd, UPPER_FD, O_CLOEXEC) >= 0);
    if (fd >= 0 && fd != UPPER_FD)
        close(fd);
    return kept;
}

_Noreturn static void fail(int socket_fd, const char *step) {
    struct failure failure = {.error = errno};
    snprintf(failure.step, sizeof failure.step, "%s", step);
    send(socket_fd, &failure, sizeof failure, MSG_NOSIGNAL);
    _exit(71);
}

static int keep_only(int fd) {
    int low = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (low < 0 || (low > 3 && dup3(fd, 3, O_CLOEXEC) < 0))
        return -1;
    if (watch_busy_fd != BUSY_FD && dup3(watch_busy_fd, BUSY_FD, O_CLOEXEC) < 0)
        return -1;
    if (syscall(__NR_close_range, 4, BUSY_FD - 1, 0) != 0 || syscall(__NR_close_range, BUSY_FD + 1, ~0u, 0) != 0)
        return -1;
    return 3;
}

/* A fresh clone has no page tables for its program and shares its data until it writes: faults that the first command
 * would pay for one by one. */
static void touch_memory(void) {
#ifndef DUTYFREE_SANITIZE
    extern char __executable_start[], etext[], __data_start[], edata[];
    const uintptr_t page = 4095;
    uintptr_t code = (uintptr_t)__executable_start & ~page, data = (uintptr_t)__data_start & ~page;
    madvise((void *)code, (((uintptr_t)etext + page) & ~page) - code, MADV_POPULATE_READ);
    madvise((void *)data, (((uintptr_t)edata + page) & ~page) - data, MADV_POPULATE_WRITE);
    volatile char stack[16384];
    for (size_t at = 0; at < sizeof stack; at += 4096)
        stack[at] = 0;
    free(malloc(4096));
#endif
}

/* Our own arguments name the installation and the owner, and anybody inside may read them. */
static void hide_arguments(void) {
    memset(spawner_arguments, 0, spawner_arguments_size);
    snprintf(spawner_arguments, spawner_arguments_size, "dutyfree-agent");
}

/* Everything that does not depend on an order. */
static const char *prepare(bool host_network) {
    const char *step = become_root_inside();
    if (step)
        return step;
    if (unshare(CLONE_NEWCGROUP) != 0) /* after joining: our own cgroup becomes the root we see */
        return "unshare cgroup namespace";
    if (sethostname("sandbox", 7) != 0)
        return "name the host";
    if ((step = prepare_stage(host_network)) || (step = birth_promise()))
        return step;
    agent_prepare();
    touch_memory();
    return NULL;
}

static void await_order(int socket_fd, void *order, size_t size, int *fds) {
    int count;
    if (receive_with_fds(socket_fd, order, size, fds, &count, MAX_FDS) != (ssize_t)size)
        _exit(0); /* the spawner changed its mind, or is gone */
}

static bool order_waits(int socket_fd) {
    char byte;
    return recv(socket_fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) > 0;
}

_Noreturn static void blank_child(int socket_fd, bool host_network) {
    char go;
    const char *step;
    struct order order;
    struct start start;
    int fds[MAX_FDS];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_NAME, "dutyfree-agent");
    hide_arguments();
    if ((socket_fd = keep_only(socket_fd)) < 0)
        _exit(72);
    if (read(socket_fd, &go, 1) != 1)
        _exit(0);
    if ((step = prepare(host_network)))
        fail(socket_fd, step);
    await_order(socket_fd, &order, sizeof order, fds);
    if ((step = birth_root(&order, fds)) || (step = birth_drop_privileges()))
        fail(socket_fd, step);
    if (!order_waits(socket_fd))
        agent_look_ahead();
    await_order(socket_fd, &start, sizeof start, fds);
    if ((step = birth_limit(start.pids)))
        fail(socket_fd, step);
    close(socket_fd);
    agent_serve(&(struct agent_options){.in_fd = fds[0],
                                        .out_fd = fds[0],
                                        .oom_fd = start.oom ? fds[1] : -1,
                                        .score_fd = -1,
                                        .open_files = start.open_files,
                                        .init = true,
                                        .whole = true,
                                        .busy_fd = BUSY_FD});
}

/* ---- in the spawner ---- */

static bool map_ids(pid_t pid, const struct slot *slot) {
    char path[48], line[48];
    uint32_t count = powers.idmap ? RANGE_SIZE : 1;
    snprintf(line, sizeof line, "0 %u %u", slot->first_id, count);
    snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
    if (!write_file(AT_FDCWD, path, line))
        return false;
    snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
    return write_file(AT_FDCWD, path, line);
}

static bool open_prepared(struct sandbox *blank) {
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/ns/user", blank->pid);
    if (powers.idmap && (blank->userns_fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return false;
    blank->oom_fd = cgroup_open_oom(&blank->slot->cgroup);
    return true;
}

void blank_close_prepared(struct sandbox *blank) {
    if (blank->userns_fd >= 0)
        close(blank->userns_fd);
    if (blank->oom_fd >= 0)
        close(blank->oom_fd);
    blank->userns_fd = blank->oom_fd = -1;
}

static const char *clone_into(struct sandbox *blank, int child_socket) {
    struct clone_args arguments = {
        .flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                 (blank->host_network ? 0 : (uint64_t)CLONE_NEWNET),
        .exit_signal = SIGCHLD,
    };
    int cgroup_fd = -1;
    if (cgroup_kind == CGROUP_V2) {
        if ((cgroup_fd = cgroup_open(&blank->slot->cgroup)) < 0)
            return "open the cgroup";
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = (uint64_t)cgroup_fd;
    }
    if (charge_to(blank->slot->first_id))
        blank->pid = (pid_t)syscall(__NR_clone3, &arguments, sizeof arguments);
    if (blank->pid == 0)
        blank_child(child_socket, blank->host_network);
    int saved = errno;
    if (!charge_to_us())
        abort(); /* never go on as somebody else */
    if (cgroup_fd >= 0)
        close(cgroup_fd);
    errno = saved;
    return blank->pid < 0 ? "clone into namespaces" : NULL;
}

const char *blank_make(struct sandbox *blank, bool host_network) {
    int pair[2];
    *blank = (struct sandbox){.life = BLANK, .pid = -1, .socket_fd = -1, .userns_fd = -1, .oom_fd = -1};
    blank->host_network = host_network;
    if (!(blank->slot = slot_take())) {
        blank->life = EMPTY;
        return "take a slot (cgroups, and ids that owners claim in /run/dutyfree-ids)";
    }
    const char *step = NULL;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        step = "make a socket";
    } else {
        blank->socket_fd = pair[0];
        step = clone_into(blank, pair[1]);
        close(pair[1]);
    }
    if (!step && (!map_ids(blank->pid, blank->slot) || !open_prepared(blank)))
        step = "map ids";
    if (!step && !cgroup_join(&blank->slot->cgroup, blank->pid))
        step = "join cgroups";
    if (!step && write(blank->socket_fd, "g", 1) != 1)
        step = "start the blank";
    if (step)
        blank_kill(blank);
    return step;
}

void blank_kill(struct sandbox *sandbox) {
    int saved = errno;
    blank_close_prepared(sandbox);
    if (sandbox->pid > 0) {
        kill(sandbox->pid, SIGKILL); /* ours and not yet collected: the number cannot mean anybody else */
        sandbox->life = DYING;
    } else {
        if (sandbox->socket_fd >= 0)
            close(sandbox->socket_fd);
        slot_put(sandbox->slot);
        sandbox->life = EMPTY;
    }
    errno = saved;
}
