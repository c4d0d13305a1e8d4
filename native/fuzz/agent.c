/* The agent's whole conversation under libFuzzer: an input is what a host sends, and the loop runs until it has all of
 * it.
 *
 * What requests do, they do to an empty tmpfs, as nobody, in namespaces of its own. No process is started: the spawn
 * always fails, and the agent's end is a jump back here. The room of the stream is included, so that each input finds
 * it fresh. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "../agent/stream.c"

enum { NOBODY = 65534, MOST = 128 << 10 };

static jmp_buf back;
static int host_fd = -1, agent_fd = -1;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
_Noreturn void __wrap_agent_end(void);
pid_t __wrap_agent_spawn(struct spawn *spawn);

_Noreturn void __wrap_agent_end(void) {
    longjmp(back, 1);
}

pid_t __wrap_agent_spawn(struct spawn *spawn) {
    spawn->failed = SPAWN_EXEC;
    spawn->errnum = ENOENT;
    return -1;
}

static void must(bool done, const char *step) {
    if (!done) {
        perror(step);
        _exit(78);
    }
}

static void write_map(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
    close(fd);
}

static void isolate(void) {
    char map[64];
    const char *kept = getenv("FUZZ_KEEP");
    if (geteuid() == 0)
        must(setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 &&
                 setresuid(NOBODY, NOBODY, NOBODY) == 0,
             "give up root");
    prctl(PR_SET_DUMPABLE, 1); /* or the files of our own in /proc are root's */
    uid_t uid = getuid();
    gid_t gid = getgid();
    int flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
    must(unshare(flags) == 0, "unshare");
    write_map("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "0 %u 1\n", uid);
    write_map("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "0 %u 1\n", gid);
    write_map("/proc/self/gid_map", map);
    /* Opened before the tmpfs hides it, should it lie below /tmp. */
    int keep = kept ? open(kept, O_PATH | O_CLOEXEC) : -1;
    must(mount("fuzz", "/tmp", "tmpfs", 0, "size=64m,nr_inodes=8k") == 0, "mount");
    if (keep >= 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", keep);
        must(mkdir("/tmp/keep", 0755) == 0 && mount(path, "/tmp/keep", NULL, MS_BIND, NULL) == 0, "bind");
        close(keep);
    }
    must(chroot("/tmp") == 0 && chdir("/") == 0, "chroot");
    mkdir("/etc", 0755);
    mkdir("/d", 0755);
    int fd = open("/etc/passwd", O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    must(fd >= 0 && write(fd, "root:x:0:0::/root:/bin/sh\n", 26) == 26, "passwd");
    close(fd);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    isolate();
    signal(SIGPIPE, SIG_IGN);
    umask(022);
    loop_open();
    tree_open();
    process_open();
    stream_prepare();
    return 0;
}

static void close_one(struct channel *channel, void *context) {
    channel_close(channel);
}

static void forget_everything(void) {
    while (channel_count())
        channel_each(close_one, NULL);
    source_close(&in);
    out.fd = -1;
    head = tail = last_frame = input_at = input_end = 0;
    last_open = flush_wanted = starved = paused = false;
    free(defaults.cwd);
    free(defaults.user);
    free(defaults.env);
    defaults = (struct defaults){0};
    user_forget();
    close(host_fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int pair[2];
    if (size > MOST || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    host_fd = pair[0];
    agent_fd = pair[1];
    if (write(host_fd, data, size) != (ssize_t)size || shutdown(host_fd, SHUT_WR) < 0)
        abort();
    if (setjmp(back) == 0) {
        stream_open(agent_fd, agent_fd, 0);
        loop_run();
    }
    forget_everything();
    return 0;
}
