/* The ground: a mount namespace of a dozen entries that every sandbox is cloned from.
 *
 * A clone copies its parent's mount table, so ours holds only what a sandbox needs: /dev with six nodes, /proc (a new
 * proc may be mounted in a user namespace only where a full one is visible), a little of /sys, and the layers. The
 * host's own paths stay reachable through a second namespace, entered for the length of one look-up. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mounts.h"
#include "spawner.h"

struct host_powers powers;
static int host_ns = -1, ground_ns = -1;
enum layer_state layer_known[MAX_KNOWN];

bool write_file(int dir_fd, const char *name, const char *text) {
    int fd = openat(dir_fd, name, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool whole = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    int saved = errno;
    close(fd);
    errno = saved;
    return whole;
}

uint64_t read_number(const char *path, int column, uint64_t otherwise) {
    char text[256], *at = text, *end;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[size > 0 ? size : 0] = 0;
    while (column-- > 0)
        strtoull(at, &at, 10);
    uint64_t number = strtoull(at, &end, 10);
    return end == at ? otherwise : number;
}

/* The whole initial id space is ours to hand out: its map reads "0 0 4294967295". */
static bool owns_all_ids(void) {
    char map[128] = "";
    int fd = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t size = read(fd, map, sizeof map - 1);
    close(fd);
    unsigned inside, outside, count;
    return size > 0 && sscanf(map, "%u %u %u", &inside, &outside, &count) == 3 && inside == 0 && outside == 0 &&
           count == 4294967295u;
}

/* An ordinary user becomes root of a namespace that holds just that user. */
static const char *become_root_of_own(void) {
    char line[64];
    if (unshare(CLONE_NEWUSER) != 0)
        return "unshare user namespace";
    snprintf(line, sizeof line, "0 %u 1", powers.owner_uid);
    if (!write_file(AT_FDCWD, "/proc/self/setgroups", "deny") || !write_file(AT_FDCWD, "/proc/self/uid_map", line))
        return "map the user's id";
    snprintf(line, sizeof line, "0 %u 1", powers.owner_gid);
    if (!write_file(AT_FDCWD, "/proc/self/gid_map", line))
        return "map the group's id";
    return NULL;
}

static int own_mount_namespace(void) {
    return open("/proc/thread-self/ns/mnt", O_RDONLY | O_CLOEXEC);
}

static const char *bind_devices(void) {
    static const char *const nodes[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const char *const links[][2] = {{"/proc/self/fd", "fd"},
                                           {"/proc/self/fd/0", "stdin"},
                                           {"/proc/self/fd/1", "stdout"},
                                           {"/proc/self/fd/2", "stderr"},
                                           {"pts/ptmx", "ptmx"}};
    char from[32], to[32];
    if (mkdir("dev", 0755) || mkdir("dev/pts", 0755) || mkdir("dev/shm", 01777))
        return "make /dev";
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        snprintf(from, sizeof from, "/dev/%s", nodes[i]);
        snprintf(to, sizeof to, "dev/%s", nodes[i]);
        int fd = open(to, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
        if (fd < 0 || mount(from, to, NULL, MS_BIND, NULL) != 0)
            return "bind a device";
        close(fd);
    }
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        snprintf(to, sizeof to, "dev/%s", links[i][1]);
        if (symlink(links[i][0], to) != 0)
            return "link a device";
    }
    return NULL;
}

static const char *bind_system_view(void) {
    if (mkdir("proc", 0555) || mount("/proc", "proc", NULL, MS_BIND, NULL))
        return "bind /proc";
    if (mkdir("sys", 0555) || mkdir("sys/devices", 0555) || mkdir("sys/devices/system", 0555) ||
        mkdir("sys/devices/system/cpu", 0555))
        return "make /sys";
    /* Processor topology is what runtimes look for; nothing else of /sys is shown. Some machines have none. */
    if (mount("/sys/devices/system/cpu", "sys/devices/system/cpu", NULL, MS_BIND, NULL) != 0 && errno != ENOENT)
        return "bind /sys/devices/system/cpu";
    return NULL;
}

const char *ground_prepare(void) {
    const char *step;
    powers.owner_uid = getuid();
    powers.owner_gid = getgid();
    powers.idmap = geteuid() == 0 && owns_all_ids();
    if (!powers.idmap && (step = become_root_of_own()))
        return step;
    if (unshare(CLONE_NEWNS) != 0)
        return "unshare mount namespace";
    /* Slave: the host's later mounts appear here, ours never appear there. */
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0 || (host_ns = own_mount_namespace()) < 0)
        return "detach from the host's mounts";
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return "unshare the ground's mount namespace";
    if (mount("dutyfree", "/tmp", "tmpfs", MS_NOSUID, "mode=755,size=1m") != 0 || chdir("/tmp") != 0)
        return "mount the ground";
    if ((step = bind_devices()) || (step = bind_system_view()))
        return step;
    if (mkdir("stage", 0755) || mkdir("layers", 0755))
        return "make the ground's directories";
    if (syscall(__NR_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
        return "pivot to the ground";
    if ((ground_ns = own_mount_namespace()) < 0)
        return "open the ground's namespace";
    return NULL;
}

/* setns to a mount namespace also moves root and working directory to its root. */
bool ground_enter_host(void) {
    return setns(host_ns, CLONE_NEWNS) == 0;
}

bool ground_leave_host(void) {
    int saved = errno;
    bool back = setns(ground_ns, CLONE_NEWNS) == 0;
    errno = saved;
    return back;
}

const char *ground_add_layer(uint32_t number, const char *path, bool host) {
    char place[32];
    if (number >= MAX_KNOWN || layer_known[number]) {
        errno = number >= MAX_KNOWN ? ENOSPC : EEXIST;
        return "number the layer";
    }
    if (!ground_enter_host())
        return "enter the host's mounts";
    int tree = open_tree_(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (!ground_leave_host())
        _exit(70); /* we would serve from the wrong root: stop, children die with us */
    if (tree < 0)
        return "open the layer";
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    snprintf(place, sizeof place, "/layers/%u", number);
    const char *failed = NULL;
    if (mount_setattr_(tree, "", AT_EMPTY_PATH, &attributes) != 0)
        failed = "make the layer read-only";
    else if (mkdir(place, 0755) != 0 && errno != EEXIST)
        failed = "make the layer's place";
    else if (move_mount_(tree, "", AT_FDCWD, place, MOVE_MOUNT_F_EMPTY_PATH) != 0)
        failed = "attach the layer";
    int saved = errno;
    close(tree);
    errno = saved;
    layer_known[number] = failed ? LAYER_UNKNOWN : host ? LAYER_HOST : LAYER_OWN;
    return failed;
}

int ground_clone_layer(uint32_t number, int userns_fd) {
    char place[32];
    if (number >= MAX_KNOWN || layer_known[number] == LAYER_UNKNOWN) {
        errno = ENOENT;
        return -1;
    }
    snprintf(place, sizeof place, "/layers/%u", number);
    int tree = open_tree_(AT_FDCWD, place, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (tree < 0 || !powers.idmap)
        return tree;
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns_fd};
    if (mount_setattr_(tree, "", AT_EMPTY_PATH, &attributes) == 0)
        return tree;
    if (errno == EINVAL && layer_known[number] == LAYER_HOST)
        return tree; /* its filesystem cannot shift owners: inside they are nobody, which is enough to read it */
    int saved = errno;
    close(tree);
    errno = saved;
    return -1;
}
