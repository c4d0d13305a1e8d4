/* What a copy of a machine must not share with its original: the state of the kernel's random numbers, and the time. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

enum { SEED = 64 };

static int digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Writing to /dev/urandom would only be mixed in at the kernel's next turn, up to a minute later: copies would give the
 * same numbers until then. */
bool fresh_seed(const char *hex) {
    struct {
        int entropy_count;
        int buf_size;
        uint8_t bytes[SEED];
    } pool = {0};
    int size = 0;
    for (; size < SEED && digit(hex[0]) >= 0 && digit(hex[1]) >= 0; hex += 2)
        pool.bytes[size++] = (uint8_t)(digit(hex[0]) << 4 | digit(hex[1]));
    if (size < 32) {
        errno = EINVAL;
        return false;
    }
    pool.buf_size = size;
    pool.entropy_count = size * 8;
    int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool done = ioctl(fd, RNDADDENTROPY, &pool) == 0 && ioctl(fd, RNDRESEEDCRNG) == 0;
    close(fd);
    return done;
}

bool fresh_clock(const char *text) {
    unsigned long long ns = strtoull(text, NULL, 10);
    struct timespec now = {.tv_sec = (time_t)(ns / 1000000000ull), .tv_nsec = (long)(ns % 1000000000ull)};
    return clock_settime(CLOCK_REALTIME, &now) == 0;
}
