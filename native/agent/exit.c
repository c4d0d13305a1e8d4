/* How a command ended: the EXIT frame, and telling an out-of-memory kill from any other SIGKILL. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"

static int counter_fd = -1;
static uint64_t purges; /* processes that exit_purge has killed */

/* memory.events (v2) and memory.oom_control (v1) both have a line "oom_kill N". */
uint64_t exit_oom_kills(void) {
    char text[512];
    ssize_t got = counter_fd < 0 ? -1 : pread(counter_fd, text, sizeof text - 1, 0);
    if (got <= 0)
        return purges;
    text[got] = 0;
    const char *line = strstr(text, "oom_kill ");
    return purges + (line ? strtoull(line + 9, NULL, 10) : 0);
}

void exit_purge(void) {
    purges += process_count();
    kill(-1, SIGKILL);
}

void exit_open(int oom_fd) {
    counter_fd = oom_fd;
}

/* Of the whole sandbox since the command began: the kernel does not say whose processes they were. */
static uint64_t kills_since(uint64_t before) {
    uint64_t now = exit_oom_kills();
    return now <= before ? 0 : now - before < UINT16_MAX ? now - before : UINT16_MAX;
}

uint64_t exit_cpu_ns(const struct rusage *usage) {
    uint64_t seconds = (uint64_t)usage->ru_utime.tv_sec + (uint64_t)usage->ru_stime.tv_sec;
    uint64_t micros = (uint64_t)usage->ru_utime.tv_usec + (uint64_t)usage->ru_stime.tv_usec;
    return seconds * 1000000000ull + micros * 1000;
}

static uint8_t *put(uint8_t *at, uint64_t value, int size) {
    for (int i = 0; i < size; i++)
        *at++ = (uint8_t)(value >> 8 * i);
    return at;
}

void exit_send(uint32_t channel, const struct exit_report *report) {
    uint8_t payload[48], *at = payload;
    /* 137: a shell whose child was killed. */
    bool killed = report->ending == WIRE_ENDED_SIGNAL
                      ? report->code == SIGKILL
                      : report->ending == WIRE_ENDED_EXIT && report->code == 128 + SIGKILL;
    uint64_t kills = kills_since(report->oom_kills_before);
    at = put(at, killed && kills ? WIRE_ENDED_OOM : report->ending, 1);
    at = put(at, report->flags, 1);
    at = put(at, kills, 2);
    at = put(at, report->code, 4);
    at = put(at, report->run_ns, 8);
    at = put(at, report->cpu_ns, 8);
    at = put(at, report->max_rss_bytes, 8);
    at = put(at, report->omitted_bytes, 8);
    at = put(at, report->stderr_omitted_bytes, 8);
    send_frame(channel, WIRE_EXIT, 0, payload, sizeof payload, NULL, 0);
}
