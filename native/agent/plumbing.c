/* The descriptors between us and a command: pipes, or a terminal. Ours do not block, the command's do. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "command.h"

enum { PIPE_SIZE = 256 << 10 };

static bool make_pipe(int ends[2]) {
    return pipe2(ends, O_CLOEXEC) == 0;
}

static void unblock(int fd) {
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

static bool open_output(struct output *output, int *child_end) {
    int ends[2];
    if (!make_pipe(ends))
        return false;
    capture_attach(output, ends[0], false);
    *child_end = ends[1];
    return true;
}

static bool open_input(struct command *command, struct spawn *spawn, bool streamed) {
    int ends[2];
    if (!make_pipe(ends))
        return false;
    unblock(ends[1]);
    input_open(&command->input, command->channel.id, ends[1], false, streamed);
    spawn->fds[0] = ends[0];
    return true;
}

/* By descriptor, not by name: the sandbox may have put anything at /dev/pts. gVisor has the names only; what is found
 * there then must be this terminal's other side. */
static int open_peer(int master) {
    enum { PTY_SLAVE_MAJOR = 136 };
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave >= 0 || errno != ENOTTY)
        return slave;
    unsigned number;
    char name[32];
    struct stat status;
    if (ioctl(master, TIOCGPTN, &number) < 0)
        return -1;
    snprintf(name, sizeof name, "/dev/pts/%u", number);
    slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (slave < 0)
        return -1;
    if (fstat(slave, &status) < 0 || !S_ISCHR(status.st_mode) || status.st_rdev != makedev(PTY_SLAVE_MAJOR, number) ||
        fcntl(slave, F_SETFL, 0) < 0) {
        close(slave);
        errno = EIO;
        return -1;
    }
    return slave;
}

static bool open_terminal(struct command *command, struct spawn *spawn, const struct exec_request *request) {
    int unlock = 0, master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (master < 0)
        return false;
    capture_attach(&command->capture.out, master, true);
    struct winsize window = {.ws_row = request->rows, .ws_col = request->columns};
    if (ioctl(master, TIOCSPTLCK, &unlock) < 0 || (window.ws_row && ioctl(master, TIOCSWINSZ, &window) < 0))
        return false;
    int slave = open_peer(master);
    if (slave < 0)
        return false;
    spawn->terminal = spawn->fds[0] = spawn->fds[1] = spawn->fds[2] = slave;
    (void)!fchown(slave, spawn->who->uid, (gid_t)-1);
    int again = fcntl(master, F_DUPFD_CLOEXEC, 3);
    if (again < 0)
        return false;
    input_open(&command->input, command->channel.id, again, true, request->options & WIRE_OPT_STDIN_OPEN);
    return true;
}

const char *plumbing_open(struct command *command, struct spawn *spawn, const struct exec_request *request) {
    if (request->options & WIRE_OPT_TERMINAL) {
        bool opened = open_terminal(command, spawn, request);
        if (!opened)
            plumbing_started(spawn);
        return opened ? NULL : "terminal";
    }
    bool streamed = request->options & WIRE_OPT_STDIN_OPEN;
    struct capture *capture = &command->capture;
    bool opened = open_output(&capture->out, &spawn->fds[1]);
    if (request->options & WIRE_OPT_MERGE)
        spawn->fds[2] = spawn->fds[1];
    else
        opened = opened && open_output(&capture->err, &spawn->fds[2]);
    if (streamed || request->input.size)
        opened = opened && open_input(command, spawn, streamed);
    if (!opened)
        plumbing_started(spawn);
    return opened ? NULL : "pipe";
}

void plumbing_started(struct spawn *spawn) {
    int errnum = errno, *fds = spawn->fds;
    if (fds[0] >= 0)
        close(fds[0]);
    if (fds[1] >= 0 && fds[1] != fds[0])
        close(fds[1]);
    if (fds[2] >= 0 && fds[2] != fds[1])
        close(fds[2]);
    errno = errnum;
}

void plumbing_feed(struct command *command, const struct exec_request *request) {
    struct capture *capture = &command->capture;
    bool terminal = request->options & WIRE_OPT_TERMINAL;
    /* Done here and not before the start, where it would delay the command. */
    if (!terminal) {
        unblock(capture->out.source.fd);
        fcntl(capture->out.source.fd, F_SETPIPE_SZ, PIPE_SIZE);
        if (capture->err.source.fd >= 0)
            unblock(capture->err.source.fd);
    }
    if (command->input.source.fd >= 0)
        input_add(&command->input, request->input.data, request->input.size, !(request->options & WIRE_OPT_STDIN_OPEN));
}
