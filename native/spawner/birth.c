/* The last steps of a blank: it gets its root as ordered and gives up every privilege. Runs in the child, as root of
 * its own user namespace, on its own stage; whatever the image contains is resolved without following its links. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../agent/agent.h"
#include "mounts.h"
#include "spawner.h"

/* A directory of the image, by the path's own components: an image whose /proc is a link somewhere is refused. */
static int open_place(int root, const char *path) {
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    while (*path == '/')
        path++;
    int fd = (int)syscall(__NR_openat2, root, path, &how, sizeof how);
    if (fd < 0 && errno == ENOENT && mkdirat(root, path, 0755) == 0)
        fd = (int)syscall(__NR_openat2, root, path, &how, sizeof how);
    return fd;
}

static bool attach(const char *from, int root, const char *place) {
    int target = open_place(root, place);
    if (target < 0)
        return false;
    bool done = move_mount_(AT_FDCWD, from, target, "", MOVE_MOUNT_T_EMPTY_PATH) == 0;
    int saved = errno;
    close(target);
    errno = saved;
    return done;
}

static const char *size_scratch(const struct order *order) {
    char options[96];
    struct scratch wanted = {.bytes = order->disk_bytes, .files = order->files};
    if (wanted.bytes == scratch_expected.bytes && wanted.files == scratch_expected.files)
        return NULL; /* as it was expected when this blank was made */
    scratch_options(&wanted, options, sizeof options);
    return mount(NULL, "/", NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, options) != 0 ? "size scratch space" : NULL;
}

static const char *attach_layers(const struct order *order, const int *fds, char *lower, size_t size) {
    size_t used = 0;
    for (uint32_t i = 0; i < order->layer_count; i++) {
        char place[16];
        snprintf(place, sizeof place, "/l/%u", i);
        if (i >= 4 && mkdir(place, 0755) != 0)
            return "make a layer's place";
        if (move_mount_(fds[i], "", AT_FDCWD, place, MOVE_MOUNT_F_EMPTY_PATH) != 0)
            return "attach a layer";
        used += (size_t)snprintf(lower + used, size - used, "%s%s", i ? ":" : "", place);
        close(fds[i]);
    }
    return NULL;
}

/* The root directory is the upper layer's own: it gets the mode and owner that the image, or what was saved on top of
 * it, gives its root. */
static const char *imitate_root(const char *upper, struct stat *st) {
    if (stat("/l/0", st) != 0)
        return "look at the image's root";
    if (powers.idmap && (st->st_uid || st->st_gid) && chown(upper, st->st_uid, st->st_gid) != 0)
        return "own the root as the image says";
    if ((st->st_mode & 07777) != 0755 && chmod(upper, st->st_mode & 07777) != 0)
        return "open the root as the image says";
    return NULL;
}

static const char *mount_root(const struct order *order, const int *fds, int disk_fd, struct stat *root) {
    char lower[1024], options[1200];
    const char *step = attach_layers(order, fds, lower, sizeof lower), *writes = "";
    if (step)
        return step;
    if (disk_fd >= 0) {
        writes = "/disk";
        if (move_mount_(disk_fd, "", AT_FDCWD, "/disk", MOVE_MOUNT_F_EMPTY_PATH) != 0)
            return "attach the disk";
        if (mkdir("/disk/upper", 0755) != 0 || mkdir("/disk/work", 0755) != 0 || !keep_upper("/disk/upper"))
            return "prepare the disk";
    }
    if ((step = imitate_root(disk_fd >= 0 ? "/disk/upper" : "/upper", root)))
        return step;
    /* userxattr: mounted in a user namespace, where only user.* attributes can mark opaque directories. */
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s/upper,workdir=%s/work,userxattr", lower, writes, writes);
    return mount("overlay", "/new", "overlay", MS_NODEV, options) != 0 ? "mount the overlay" : NULL;
}

/* Leaving root also takes the capabilities over files away; coming back gives them back. */
static bool use_files_as(uid_t id) {
    setfsgid(id);
    setfsuid(id);
    return (uid_t)setfsuid((uid_t)-1) == id && (uid_t)setfsgid((uid_t)-1) == id;
}

/* A directory of the host is shown through an overlay of the sandbox's own, never itself: watches, leases and locks
 * inside are then on inodes that nobody else has. What is read beneath is read with the credentials that mount the
 * overlay. They are nobody's, so what others on the host may not read, root inside may not read either. (An ordinary
 * user's sandbox can read what that user can.) The empty layer on top answers for the size of the disk. */
static const char *show_host(int tree, const char *place, const char *none, int root, const char *target) {
    enum { NOBODY = RANGE_SIZE - 1 };
    char options[64];
    struct stat st;
    if ((mkdir(place, 0755) != 0 && errno != EEXIST) ||
        move_mount_(tree, "", AT_FDCWD, place, MOVE_MOUNT_F_EMPTY_PATH) != 0)
        return "attach a directory of the host";
    if (stat(place, &st) != 0 || mkdir(none, st.st_mode & 07777) != 0 ||
        utimensat(AT_FDCWD, none, (struct timespec[]){st.st_atim, st.st_mtim}, 0) != 0)
        return "make a directory to lie over the host's";
    snprintf(options, sizeof options, "lowerdir=%s:%s,userxattr", none, place);
    if (powers.idmap && !use_files_as(NOBODY))
        return "be nobody";
    bool mounted = mount("overlay", place, "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV, options) == 0;
    int saved = errno;
    /* Changing these ids, too, clears the signal that ties us to the spawner's life. */
    if (powers.idmap && (!use_files_as(0) || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0))
        return "be root again";
    agent_guard();
    errno = saved;
    return mounted && attach(place, root, target) ? NULL : "show a directory of the host";
}

/* The new root is moved over the stage and entered, as an initramfs does. Against pivot_root it saves a walk over all
 * processes of the machine and, with the unmount, a wait for every processor; the stage that stays below holds nothing
 * but the sandbox's own layers and scratch, and chroot, which could find it, is not available inside. */
static const char *enter(int root) {
    if (fchdir(root) != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 || chdir("/") != 0)
        return "enter the new root";
    return NULL;
}

const char *birth_root(const struct order *order, const int *fds) {
    int next = 0, disk_fd = order->disk ? fds[next++] : -1;
    const char *step;
    struct stat image_root;
    if ((step = size_scratch(order)) || (step = mount_root(order, fds + next, disk_fd, &image_root)))
        return step;
    next += (int)order->layer_count;
    int root = open("/new", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return "open the new root";
    for (uint32_t i = 0; i < order->bind_count; i++, next++) {
        char place[16], none[24];
        snprintf(place, sizeof place, "/l/%u", order->layer_count + i);
        snprintf(none, sizeof none, "/l/none%u", i);
        if ((step = show_host(fds[next], place, none, root, order->targets[i])))
            return step;
        close(fds[next]);
    }
    if (!attach("/proc", root, "proc"))
        return "attach /proc (is it a link in this image?)";
    if (!attach("/dev", root, "dev"))
        return "attach /dev (is it a link in this image?)";
    if (!attach("/sys", root, "sys"))
        return "attach /sys (is it a link in this image?)";
    /* Two sandboxes of one image differ in nothing, not even in when their root was made. */
    if (utimensat(AT_FDCWD, disk_fd >= 0 ? "/disk/upper" : "/upper",
                  (struct timespec[]){image_root.st_atim, image_root.st_mtim}, 0) != 0)
        return "date the root";
    if (disk_fd >= 0)
        close(disk_fd);
    step = enter(root);
    close(root);
    return step;
}

/* What root inside may still do, all of it to its own files and processes only. */
static const int kept[] = {CAP_CHOWN,  CAP_DAC_OVERRIDE, CAP_FOWNER,  CAP_FSETID,  CAP_KILL,
                           CAP_SETGID, CAP_SETUID,       CAP_SETPCAP, CAP_SETFCAP, CAP_NET_BIND_SERVICE};

static uint64_t kept_set(void) {
    uint64_t keep = 0;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        keep |= 1ull << kept[i];
    return keep;
}

const char *birth_promise(void) {
    uint64_t keep = kept_set();
    for (int capability = 0; capability <= 63; capability++)
        if (!(keep >> capability & 1) && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) {
            if (errno == EINVAL)
                break; /* past the last one this kernel knows */
            return "drop capabilities";
        }
    /* 1 and not 0: the kernel refuses a core dump to a host program (a pipe in core_pattern) only at exactly 1. */
    struct rlimit core = {1, 1};
    if (setrlimit(RLIMIT_CORE, &core) != 0)
        return "forbid core dumps";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return "forbid new privileges";
    return filter_install();
}

const char *birth_drop_privileges(void) {
    uint64_t keep = kept_set();
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {
        {.effective = (uint32_t)keep, .permitted = (uint32_t)keep},
        {.effective = (uint32_t)(keep >> 32), .permitted = (uint32_t)(keep >> 32)}};
    if (syscall(__NR_capset, &header, sets) != 0)
        return "set capabilities";
    return filter_seal();
}

const char *birth_limit(uint32_t pids) {
    /* The kernel counts these per user namespace, so this holds also where there is no cgroup. */
    struct rlimit processes = {pids, pids};
    if (pids && setrlimit(RLIMIT_NPROC, &processes) != 0)
        return "limit processes";
    return NULL;
}
