/* Faults at named points of the spawner, for tests. Linked only by `make FAULTS=1`: what is installed has none of this.
 *
 * The linker leads the calls below through here. DUTYFREE_FAULT=<name>:<number>:<what> makes the number-th call of that
 * name, counted over the spawner and everything it clones, fail with an errno (ENOSPC, EIO, …), or end (kill) or stop
 * (stop) whoever makes it. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static char name[32], what[16];
static long number;
static long *count; /* shared with every clone */

__attribute__((constructor)) static void read_order(void) {
    const char *order = getenv("DUTYFREE_FAULT");
    if (order && sscanf(order, "%31[^:]:%ld:%15s", name, &number, what) == 3)
        count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static int error_named(const char *text) {
    static const struct {
        const char *text;
        int error;
    } errors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},     {"EMFILE", EMFILE}, {"ENOMEM", ENOMEM}, {"EBUSY", EBUSY},
                  {"EAGAIN", EAGAIN}, {"EINTR", EINTR}, {"ENFILE", ENFILE}, {"EPERM", EPERM}};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strcmp(errors[i].text, text) == 0)
            return errors[i].error;
    return EIO;
}

/* True: the call is to fail, and errno says how. */
static int reached(const char *point) {
    if (!count || strcmp(point, name) != 0 || __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST) != number)
        return 0;
    if (strcmp(what, "kill") == 0)
        kill(getpid(), SIGKILL);
    if (strcmp(what, "stop") == 0) {
        kill(getpid(), SIGSTOP);
        return 0;
    }
    errno = error_named(what);
    return 1;
}

#define POINT(result, function, parameters, arguments)                                                                 \
    result __real_##function parameters;                                                                               \
    result __wrap_##function parameters;                                                                               \
    result __wrap_##function parameters {                                                                              \
        return reached(#function) ? -1 : __real_##function arguments;                                                  \
    }

POINT(int, mount, (const char *a, const char *b, const char *c, unsigned long d, const void *e), (a, b, c, d, e))
POINT(int, umount2, (const char *a, int b), (a, b))
POINT(int, mkdir, (const char *a, mode_t b), (a, b))
POINT(int, rmdir, (const char *a), (a))
POINT(int, unshare, (int a), (a))
POINT(int, setns, (int a, int b), (a, b))
POINT(int, open, (const char *a, int b, mode_t c), (a, b, c))
POINT(int, openat, (int a, const char *b, int c, mode_t d), (a, b, c, d))
POINT(int, socketpair, (int a, int b, int c, int *d), (a, b, c, d))
POINT(ssize_t, sendmsg, (int a, const struct msghdr *b, int c), (a, b, c))
POINT(ssize_t, recvmsg, (int a, struct msghdr *b, int c), (a, b, c))
POINT(ssize_t, write, (int a, const void *b, size_t c), (a, b, c))
POINT(int, setresuid, (uid_t a, uid_t b, uid_t c), (a, b, c))
POINT(int, seteuid, (uid_t a), (a))

static const char *name_of(long call) {
    switch (call) {
    case __NR_clone3:
        return "clone3";
    case __NR_pivot_root:
        return "pivot_root";
    case __NR_seccomp:
        return "seccomp";
    default:
        return "syscall";
    }
}

long __real_syscall(long call, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long call, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long call, long a, long b, long c, long d, long e, long f) {
    return reached(name_of(call)) ? -1 : __real_syscall(call, a, b, c, d, e, f);
}
