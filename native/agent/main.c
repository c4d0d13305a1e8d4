/* The agent as a program of its own: dutyfree-agent [--fd N | --container | --version]. The stream is stdio unless a
 * descriptor is named. --container: not PID 1, but in a control group that is the sandbox's alone. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

static int usage(void) {
    fputs("usage: dutyfree-agent [--fd N | --container | --version]\n", stderr);
    return 2;
}

/* In a container that others made, its cgroup is mounted where containers have theirs: v2, then v1. That we are in one
 * is seen by being PID 1, or said by --container. */
static int own_oom_counter(void) {
    int fd = open("/sys/fs/cgroup/memory.events", O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? fd : open("/sys/fs/cgroup/memory/memory.oom_control", O_RDONLY | O_CLOEXEC);
}

int main(int argc, char **argv) {
    struct agent_options options = {.in_fd = 0, .out_fd = 1, .oom_fd = -1, .score_fd = -1, .init = getpid() == 1};
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        printf("dutyfree-agent protocol %d\n", WIRE_VERSION);
        return 0;
    }
    const bool contained = argc == 2 && !strcmp(argv[1], "--container");
    if (argc == 3 && !strcmp(argv[1], "--fd")) {
        char *end;
        long fd = strtol(argv[2], &end, 10);
        if (*end || end == argv[2] || fd < 0 || fd > 65535)
            return usage();
        options.in_fd = options.out_fd = (int)fd;
    } else if (argc != 1 && !contained) {
        return usage();
    }
    if (options.init || contained)
        options.oom_fd = own_oom_counter();
    agent_serve(&options);
}
