/* Disk-backed scratch space: an ext4 image in a file that has no name any more, on a loop device that frees itself.
 * When the sandbox's mounts go, the device and the file go with them, whoever was killed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "mounts.h"
#include "spawner.h"

static int attach_loop(int image_fd, char *path, size_t size, const char **step) {
    struct loop_config config = {.fd = (uint32_t)image_fd, .info = {.lo_flags = LO_FLAGS_AUTOCLEAR}};
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    *step = "open /dev/loop-control";
    if (control < 0)
        return -1;
    int device = -1;
    /* Another process may take the free device before us: then there is another one. */
    for (int attempt = 0; attempt < 64; attempt++) {
        int number = ioctl(control, LOOP_CTL_GET_FREE);
        *step = "find a loop device";
        if (number < 0)
            break;
        snprintf(path, size, "/dev/loop%d", number);
        *step = "configure a loop device";
        if ((device = open(path, O_RDWR | O_CLOEXEC)) < 0)
            break;
        if (ioctl(device, LOOP_CONFIGURE, &config) == 0)
            break;
        int saved = errno;
        close(device);
        device = -1;
        errno = saved;
        if (saved != EBUSY)
            break;
    }
    int saved = errno;
    close(control);
    errno = saved;
    return device;
}

static int mount_ext4(const char *path, int userns_fd, const char **step) {
    int context = fsopen_("ext4"), tree = -1;
    *step = "mount the disk";
    if (context < 0)
        return -1;
    /* The image is nobody else's and dies with the sandbox: nothing needs to survive a crash. */
    if (fsconfig_(context, FSCONFIG_SET_STRING, "source", path, 0) == 0 &&
        fsconfig_(context, FSCONFIG_SET_FLAG, "nobarrier", NULL, 0) == 0 &&
        fsconfig_(context, FSCONFIG_SET_FLAG, "noinit_itable", NULL, 0) == 0 &&
        fsconfig_(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        tree = fsmount_(context, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns_fd};
    int saved = errno;
    close(context);
    errno = saved;
    if (tree < 0)
        return -1;
    *step = "shift the disk's owners";
    if (mount_setattr_(tree, "", AT_EMPTY_PATH, &attributes) != 0) {
        saved = errno;
        close(tree);
        errno = saved;
        return -1;
    }
    return tree;
}

int disk_mount(int image_fd, int userns_fd, const char **step) {
    char path[32];
    *step = "enter the host's mounts";
    if (!ground_enter_host())
        return -1;
    int device = attach_loop(image_fd, path, sizeof path, step);
    int tree = device < 0 ? -1 : mount_ext4(path, userns_fd, step);
    int saved = errno;
    if (device >= 0)
        close(device); /* the mount holds it now; without one it frees itself */
    if (!ground_leave_host())
        _exit(70);
    errno = saved;
    return tree;
}
