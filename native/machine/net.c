/* Interfaces, by ioctl: the root may have no program for it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "machine.h"

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
