/* Interfaces, by ioctl: the root may have no program for it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

enum { LISTEN_ATTEMPTS = 12000 };

static bool set_address(int fd, struct ifreq *request, unsigned long what, const char *text) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, text, &address.sin_addr) != 1)
        return false;
    memcpy(&request->ifr_addr, &address, sizeof address);
    return ioctl(fd, what, request) == 0;
}

static bool bring_up(const char *name, const char *address) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {0};
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    bool done = fd >= 0;
    if (done && address)
        done = set_address(fd, &request, SIOCSIFADDR, address) &&
               set_address(fd, &request, SIOCSIFNETMASK, "255.255.255.0");
    done = done && ioctl(fd, SIOCGIFFLAGS, &request) == 0;
    request.ifr_flags |= IFF_UP | IFF_RUNNING;
    done = done && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return done;
}

bool net_loopback(void) {
    return bring_up("lo", NULL);
}

/* The address that QEMU's own network hands out first. */
bool net_ethernet(void) {
    return bring_up("eth0", "10.0.2.15");
}

static bool listens_now(unsigned port) {
    FILE *table = fopen("/proc/net/tcp", "re");
    if (!table)
        return false;
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, table)) {
        unsigned local, state;
        found = sscanf(line, " %*d: %*8x:%x %*8x:%*x %x", &local, &state) == 2 && local == port && state == 0x0A;
    }
    fclose(table);
    return found;
}

/* Nobody announces that a server has begun to listen; the kernel's table says so. */
bool net_listens(const char *port) {
    for (int i = 0; i < LISTEN_ATTEMPTS; i++) {
        if (listens_now((unsigned)atoi(port)))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    errno = ETIMEDOUT;
    return false;
}
