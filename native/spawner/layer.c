/* Layers that are made here: filesystems in memory that nothing but the spawner's mount namespace names, so that they
 * vanish with it whatever is killed. And the end of a layer's time, made here or not. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "mounts.h"
#include "state.h"

static void place_of(uint32_t number, char *place, size_t size) {
    snprintf(place, size, "/layers/%u", number);
}

const char *layer_make(uint32_t number, int like) {
    char place[32], options[96];
    struct statfs room;
    if (number == 0 || number >= MAX_KNOWN || layer_known[number] != LAYER_UNKNOWN) {
        errno = number >= MAX_KNOWN ? ENOSPC : EEXIST;
        return "number the layer";
    }
    if (fstatfs(like, &room) != 0)
        return "look at the scratch space";
    /* What it is copied from cannot outgrow that; 0, which means no limit, stays 0. */
    int size = snprintf(options, sizeof options, "mode=755,size=%llu,nr_inodes=%llu",
                        (unsigned long long)room.f_blocks * (unsigned long long)room.f_bsize,
                        (unsigned long long)room.f_files);
    place_of(number, place, sizeof place);
    if (mkdir(place, 0755) != 0 && errno != EEXIST)
        return "make the layer's place";
    /* Larger pages where a file fills them: half the time of the copy. Not every kernel is built with them. */
    snprintf(options + size, sizeof options - (size_t)size, ",huge=within_size");
    unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOATIME;
    if (mount("layer", place, "tmpfs", flags, options) == 0)
        return NULL;
    options[size] = 0;
    return errno != EINVAL || mount("layer", place, "tmpfs", flags, options) != 0 ? "mount a layer" : NULL;
}

const char *layer_seal(uint32_t number) {
    char place[32];
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    place_of(number, place, sizeof place);
    if (mount_setattr_(AT_FDCWD, place, 0, &attributes) != 0)
        return "make the layer read-only";
    layer_known[number] = LAYER_OWN;
    return NULL;
}

void layer_forget(uint32_t number) {
    char place[32];
    if (number == 0 || number >= MAX_KNOWN)
        return;
    /* Blanks that wait with a root of this layer are of no use, and the number may come to mean another. */
    const struct create_request *likely = expected_request();
    for (uint32_t i = 0; likely && i < likely->layer_count + likely->bind_count; i++)
        if (number == (i < likely->layer_count ? likely->layers[i] : likely->binds[i - likely->layer_count].layer)) {
            expect(NULL);
            break;
        }
    place_of(number, place, sizeof place);
    umount2(place, MNT_DETACH);
    layer_known[number] = LAYER_UNKNOWN;
}

static int shifted(int tree, int userns_fd) {
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns_fd};
    if (tree < 0 || mount_setattr_(tree, "", AT_EMPTY_PATH, &attributes) == 0)
        return tree;
    int saved = errno;
    close(tree);
    errno = saved;
    return -1;
}

int layer_open(uint32_t number, int userns_fd) {
    char place[32];
    place_of(number, place, sizeof place);
    return shifted(open_tree_(AT_FDCWD, place, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), userns_fd);
}

int layer_open_directory(const char *path, int userns_fd) {
    if (!ground_enter_host())
        return -1;
    int tree = open_tree_(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
    if (!ground_leave_host())
        _exit(70); /* we would serve from the wrong root: stop, children die with us */
    return shifted(tree, userns_fd);
}
