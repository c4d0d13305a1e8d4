/* Boots, says "ready", and obeys. Every line of the host is answered by "ok" or "failed <errno>":
 *
 *   seed HEX             new randomness        clock NS          the time of day
 *   name HOSTNAME        the machine's name    upper OPTIONS     remount what takes the writes
 *   limit FILE VALUE     of the control group  loopback · ethernet · listens PORT (wait until somebody does)
 *   agent PORT           start an agent on that port; the first one is PID 1 of a pid namespace that later ones join
 *   run PROGRAM WORD…    start a program that nobody waits for · call PROGRAM WORD…   wait for its end, whatever that
 * is
 *
 * The machine ends when the first agent or the control port does. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine.h"

enum { LINE = 8192, WORDS = 64 };

static int control = -1, agent_fd = -1;
static pid_t first_agent;

static _Noreturn void power_off(void) {
    sync();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

_Noreturn void machine_fail(const char *step) {
    dprintf(2, "dutyfree-machine: %s: %s\n", step, strerror(errno));
    power_off();
}

bool write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t written = write(fd, text, strlen(text));
    close(fd);
    return written == (ssize_t)strlen(text);
}

/* The namespaces of the first agent, as a later one sees them. */
static bool join_first(void) {
    /* first_agent is its parent, whose own pid namespace is still the machine's. */
    static const char *const kinds[] = {"pid_for_children", "mnt"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)first_agent, kinds[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || setns(fd, 0) != 0)
            return false;
        close(fd);
    }
    return chdir("/") == 0;
}

static void child_begin(void) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void agent_exec(int port, bool first) {
    char *const argv[] = {"dutyfree-agent", first ? NULL : "--container", NULL};
    char *const env[] = {NULL};
    child_begin();
    setsid();
    if (dup2(port, 0) >= 0 && dup2(port, 1) >= 0)
        fexecve(agent_fd, argv, env);
    _exit(71);
}

static bool first_mounts(void) {
    return mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0 && group_show();
}

/* A middle process enters the namespaces: a pid namespace holds for children only, and ours must stay the machine's. */
static bool start_agent(const char *name) {
    int port = port_open(name);
    if (port < 0)
        return false;
    bool first = first_agent == 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (!group_enter() || (first ? unshare(CLONE_NEWPID | CLONE_NEWNS) != 0 : !join_first()))
            _exit(71);
        pid_t agent = fork();
        if (agent == 0) {
            if (first && !first_mounts())
                _exit(71);
            agent_exec(port, first);
        }
        /* The first agent's parent stays, as a name for the agent's end; a later agent is the first one's to reap. */
        int status;
        if (first && agent > 0)
            waitpid(agent, &status, 0);
        _exit(agent < 0);
    }
    close(port);
    if (first && pid > 0)
        first_agent = pid;
    return pid > 0;
}

static bool start_program(char *words, bool wait) {
    char *argv[WORDS + 1] = {0};
    int count = 0;
    for (char *word = strtok(words, " "); word && count < WORDS; word = strtok(NULL, " "))
        argv[count++] = word;
    pid_t pid = count ? fork() : -1;
    if (pid == 0) {
        child_begin();
        setsid();
        if (group_enter() && unshare(CLONE_NEWNS) == 0 && group_show())
            execv(argv[0], argv);
        _exit(71);
    }
    if (wait && pid > 0)
        waitpid(pid, NULL, 0);
    return pid > 0;
}

static bool obey(char *line) {
    char *rest = strchr(line, ' ');
    if (rest)
        *rest++ = 0;
    else
        rest = "";
    if (!strcmp(line, "seed"))
        return fresh_seed(rest);
    if (!strcmp(line, "clock"))
        return fresh_clock(rest);
    if (!strcmp(line, "name"))
        return sethostname(rest, strlen(rest)) == 0;
    if (!strcmp(line, "upper"))
        return upper_bound(rest);
    if (!strcmp(line, "loopback"))
        return net_loopback();
    if (!strcmp(line, "ethernet"))
        return net_ethernet();
    if (!strcmp(line, "listens"))
        return net_listens(rest);
    if (!strcmp(line, "agent"))
        return start_agent(rest);
    if (!strcmp(line, "run") || !strcmp(line, "call"))
        return start_program(rest, line[0] == 'c');
    if (!strcmp(line, "limit")) {
        char *value = strchr(rest, ' ');
        if (value)
            *value++ = 0;
        return value && group_limit(rest, value);
    }
    errno = ENOSYS;
    return false;
}

static void answer(char *line) {
    errno = 0;
    if (obey(line)) {
        port_say(control, "ok\n");
        return;
    }
    char text[32];
    snprintf(text, sizeof text, "failed %d\n", errno);
    port_say(control, text);
}

static void reap(void) {
    for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
        if (pid == first_agent)
            power_off();
}

int main(void) {
    if (getpid() != 1) {
        dprintf(2, "dutyfree-machine: runs as the first process of a virtual machine only\n");
        return 2;
    }
    agent_fd = open("/agent", O_RDONLY | O_CLOEXEC);
    devices_open();
    root_mount();
    control = port_open("control");
    if (control < 0)
        machine_fail("control port");
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    int children = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    port_say(control, "ready\n");
    static char line[LINE];
    for (;;) {
        struct pollfd fds[] = {{.fd = control, .events = POLLIN}, {.fd = children, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            machine_fail("poll");
        if (fds[1].revents) {
            struct signalfd_siginfo info;
            while (read(children, &info, sizeof info) > 0)
                ;
            reap();
        }
        if (fds[0].revents & POLLHUP)
            power_off();
        if (fds[0].revents & POLLIN && port_line(control, line, sizeof line))
            answer(line);
    }
}
