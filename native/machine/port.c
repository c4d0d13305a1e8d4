/* virtio-serial ports: found by name in sysfs, read by lines. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

enum { ATTEMPTS = 60000 };

static bool has_name(const char *port, const char *name) {
    char path[300], said[64] = "";
    snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", port);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, said, sizeof said - 1);
    close(fd);
    if (got > 0 && said[got - 1] == '\n')
        said[got - 1] = 0;
    return !strcmp(said, name);
}

static int open_once(const char *name) {
    DIR *ports = opendir("/sys/class/virtio-ports");
    if (!ports)
        return -1;
    int fd = -1;
    for (struct dirent *entry; fd < 0 && (entry = readdir(ports));) {
        if (entry->d_name[0] == '.' || !has_name(entry->d_name, name))
            continue;
        char path[300];
        snprintf(path, sizeof path, "/dev/%s", entry->d_name);
        fd = open(path, O_RDWR | O_CLOEXEC);
    }
    closedir(ports);
    return fd;
}

/* A port appears some time after its device: the kernel learns of it by messages that nobody can wait for. */
int port_open(const char *name) {
    for (int i = 0; i < ATTEMPTS; i++) {
        int fd = open_once(name);
        if (fd >= 0)
            return fd;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return -1;
}

/* True: a line without its end. Lines come whole or in pieces; one that is too long is cut. */
bool port_line(int fd, char *line, size_t size) {
    static size_t have;
    char byte;
    while (read(fd, &byte, 1) == 1) {
        if (byte == '\n') {
            line[have] = 0;
            have = 0;
            return true;
        }
        if (have < size - 1)
            line[have++] = byte;
    }
    return false;
}

void port_say(int fd, const char *text) {
    size_t size = strlen(text);
    while (size) {
        ssize_t written = write(fd, text, size);
        if (written <= 0)
            return;
        text += written;
        size -= (size_t)written;
    }
}
