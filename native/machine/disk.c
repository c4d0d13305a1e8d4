/* From an initramfs and disks to a root: modules, a read-only disk with the image, something writable above it.
 *
 *   /dev/vda   the image, ext4, read-only; shared by all machines of that image
 *   /dev/vdb   if it is there: takes the writes; else they stay in memory */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

enum { ATTEMPTS = 60000 };

static int upper_fd = -1;

static void must_mount(const char *source, const char *target, const char *kind, unsigned long flags,
                       const char *options) {
    mkdir(target, 0755);
    if (mount(source, target, kind, flags, options) != 0)
        machine_fail(target);
}

static void load_module(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) != 0 && errno != EEXIST))
        machine_fail(path);
    close(fd);
}

/* One path per line, in the order of their dependencies. */
static void load_modules(void) {
    FILE *list = fopen("/modules", "re");
    if (!list)
        machine_fail("/modules");
    char path[256];
    while (fgets(path, sizeof path, list)) {
        path[strcspn(path, "\n")] = 0;
        load_module(path);
    }
    fclose(list);
}

void devices_open(void) {
    must_mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    must_mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    must_mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=755");
    load_modules();
}

static bool appears(const char *path) {
    struct stat status;
    for (int i = 0; i < ATTEMPTS; i++) {
        if (stat(path, &status) == 0)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

static bool has_second_disk(void) {
    struct stat status;
    return stat("/sys/block/vdb", &status) == 0 && appears("/dev/vdb");
}

/* By a descriptor: no path leads to it from the new root. */
bool upper_bound(const char *options) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", upper_fd);
    return mount("upper", path, "tmpfs", MS_REMOUNT | MS_NOATIME, options) == 0;
}

static void mount_kernel(void) {
    static const struct {
        const char *target, *kind, *options;
        unsigned long flags;
    } wanted[] = {
        {"/proc", "proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC},
        {"/sys", "sysfs", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC},
        {"/sys/fs/cgroup", "cgroup2", "nsdelegate", MS_NOSUID | MS_NODEV | MS_NOEXEC},
        {"/dev", "devtmpfs", "mode=755", MS_NOSUID},
        {"/dev/pts", "devpts", "ptmxmode=0666,mode=620,gid=5", MS_NOSUID | MS_NOEXEC},
        {"/dev/shm", "tmpfs", "mode=1777", MS_NOSUID | MS_NODEV},
        {"/run", "tmpfs", "mode=755", MS_NOSUID | MS_NODEV},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        must_mount(wanted[i].kind, wanted[i].target, wanted[i].kind, wanted[i].flags, wanted[i].options);
    /* A request above the machine's memory must meet the sandbox's limit, as it does on a large machine, not the
     * kernel's guess. */
    write_text("/proc/sys/vm/overcommit_memory", "1");
    static const char *const links[][2] = {
        {"/proc/self/fd", "/dev/fd"},
        {"/proc/self/fd/0", "/dev/stdin"},
        {"/proc/self/fd/1", "/dev/stdout"},
        {"/proc/self/fd/2", "/dev/stderr"},
    };
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (symlink(links[i][0], links[i][1]) != 0 && errno != EEXIST)
            machine_fail(links[i][1]);
}

void root_mount(void) {
    if (!appears("/dev/vda"))
        machine_fail("/dev/vda");
    must_mount("/dev/vda", "/lower", "ext4", MS_RDONLY | MS_NOATIME, NULL);
    if (has_second_disk())
        must_mount("/dev/vdb", "/upper", "ext4", MS_NOATIME, NULL);
    else
        must_mount("upper", "/upper", "tmpfs", MS_NOATIME, "mode=755,size=75%");
    mkdir("/upper/upper", 0755);
    mkdir("/upper/work", 0755);
    /* /extra: files that the initramfs brings for the root, above the image's. */
    must_mount("root", NEW_ROOT, "overlay", MS_NOATIME,
               "lowerdir=/extra:/lower,upperdir=/upper/upper,workdir=/upper/work");
    umount2("/proc", MNT_DETACH);
    umount2("/sys", MNT_DETACH);
    umount2("/dev", MNT_DETACH);
    upper_fd = open("/upper", O_PATH | O_CLOEXEC);
    /* The initramfs cannot be left by pivot_root: the new root is moved over it. */
    if (chdir(NEW_ROOT) != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 || chdir("/") != 0)
        machine_fail("root");
    mount_kernel();
}
