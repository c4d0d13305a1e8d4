/* The agent as a program of its own: dutyfree-agent [--fd N | --machine] [--version]. The stream is stdio unless a
 * descriptor is named. --machine: not PID 1, but all the same in a control group that is the sandbox's alone. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

static int usage(void) {
    fputs("usage: dutyfree-agent [--fd N | --machine] [--version]\n", stderr);
    return 2;
}

/* As PID 1 of a container that others made, its cgroup is mounted where containers have theirs: v2, then v1. */
static int own_oom_counter(void) {
    int fd = open("/sys/fs/cgroup/memory.events", O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? fd : open("/sys/fs/cgroup/memory/memory.oom_control", O_RDONLY | O_CLOEXEC);
}

int main(int argc, char **argv) {
    bool in_machine = false;
    struct agent_options options = {.in_fd = 0, .out_fd = 1, .oom_fd = -1, .score_fd = -1, .init = getpid() == 1};
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        printf("dutyfree-agent protocol %d\n", WIRE_VERSION);
        return 0;
    }
    if (argc == 3 && !strcmp(argv[1], "--fd")) {
        char *end;
        long fd = strtol(argv[2], &end, 10);
        if (*end || end == argv[2] || fd < 0 || fd > 65535)
            return usage();
        options.in_fd = options.out_fd = (int)fd;
    } else if (argc == 2 && !strcmp(argv[1], "--machine")) {
        in_machine = true;
    } else if (argc != 1) {
        return usage();
    }
    if (options.init || in_machine)
        options.oom_fd = own_oom_counter();
    agent_serve(&options);
}
