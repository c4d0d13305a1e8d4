/* The control group of everything that is not ours. Made when a first limit comes: without one, commands run in the
 * root group and may make groups of their own. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "machine.h"

#define ROOT "/sys/fs/cgroup"
#define GROUP ROOT "/sandbox"

static bool limited;

bool group_limit(const char *file, const char *value) {
    char path[256];
    if (strchr(file, '/')) {
        errno = EINVAL;
        return false;
    }
    if (!limited) {
        if (!write_text(ROOT "/cgroup.subtree_control", "+cpu +memory +pids") || mkdir(GROUP, 0755) != 0)
            return false;
        limited = true;
    }
    snprintf(path, sizeof path, "%s/%s", GROUP, file);
    return write_text(path, value);
}

/* Called by the process that is to be in it. */
bool group_enter(void) {
    if (!limited)
        return true;
    return write_text(GROUP "/cgroup.procs", "0");
}

/* In a mount namespace of its own: /sys/fs/cgroup shows the group itself, as in a container. The mount below it goes
 * first: the kernel refuses one file system twice at one place. */
bool group_show(void) {
    if (!limited)
        return true;
    return unshare(CLONE_NEWCGROUP) == 0 && umount2(ROOT, MNT_DETACH) == 0 &&
           mount("cgroup2", ROOT, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0;
}
