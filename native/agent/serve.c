/* The agent as a whole: what it is before the first frame and how it ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef DUTYFREE_SANITIZE
#include <sanitizer/common_interface_defs.h>
#endif

#include "core.h"

enum { FIRST_OWN_FD = 16 }; /* below are those that a child receives */

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

static bool is_init;
static int death_signal; /* that whoever started us chose */

bool agent_is_init(void) {
    return is_init;
}

void agent_guard(void) {
#ifdef DUTYFREE_SANITIZE
    prctl(PR_SET_DUMPABLE, 1); /* for the tests, which look into /proc of this process */
#else
    prctl(PR_SET_DUMPABLE, 0);
#endif
    if (death_signal)
        prctl(PR_SET_PDEATHSIG, death_signal);
}

_Noreturn void agent_end(void) {
    /* As PID 1 the kernel kills all the others when we are gone. */
    if (getpid() != 1)
        tree_kill_all();
    _exit(0);
}

static void default_signals(void) {
    sigset_t all;
    sigfillset(&all);
#ifdef DUTYFREE_SANITIZE
    sigdelset(&all, SIGSEGV); /* the sanitizer's own */
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
#endif
    /* By the raw call: libc keeps 32 and 33 to itself, and refuses to reset them if we inherited them ignored. */
    const unsigned long plain[4] = {0}; /* the kernel's struct sigaction: SIG_DFL, no flags, no mask */
    for (int number = 1; number < _NSIG; number++)
        if (number == 32 || number == 33 || sigismember(&all, number) == 1)
            syscall(SYS_rt_sigaction, number, plain, NULL, 8);
    /* Blocked, not ignored: dispositions are then the commands' already, and a write to a closed pipe only fails. */
    sigprocmask(SIG_SETMASK, &all, NULL);
}

static int move_up(int fd) {
    return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, FIRST_OWN_FD);
}

static void empty_stdio(void) {
#ifdef DUTYFREE_SANITIZE
    __sanitizer_set_report_fd((void *)(intptr_t)move_up(2));
#endif
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++)
        if (null >= 0 ? dup2(null, fd) < 0 : 0)
            _exit(71);
    if (null > 2)
        close(null);
    else if (null >= 0)
        fcntl(null, F_SETFD, 0);
}

void agent_look_ahead(void) {
    static bool done;
    if (done)
        return;
    done = true;
    static const char *const paths[] = {"/bin/bash",
                                        "/bin/sh",
                                        "/usr/bin/env",
                                        "/etc/ld.so.cache",
                                        "/lib64/ld-linux-x86-64.so.2",
                                        "/lib/x86_64-linux-gnu/libc.so.6"};
    struct identity who;
    resolve_user("", &who);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        (void)!access(paths[i], R_OK);
}

void agent_prepare(void) {
    static bool done;
    if (done)
        return;
    done = true;
    default_signals();
    prctl(PR_GET_PDEATHSIG, &death_signal);
    agent_guard();
    umask(022);
    loop_open();
    tree_open();
    process_open();
    stream_prepare();
}

_Noreturn void agent_serve(const struct agent_options *options) {
    struct agent_options own = *options;
    agent_prepare();
    own.in_fd = move_up(options->in_fd);
    own.out_fd = move_up(options->out_fd);
    if (own.in_fd < 0 || own.out_fd < 0)
        _exit(71);
    if (options->in_fd > 2)
        close(options->in_fd);
    if (options->out_fd > 2 && options->out_fd != options->in_fd)
        close(options->out_fd);
    empty_stdio();
#ifdef SYS_close_range
    syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC);
#endif
    is_init = own.init;
    process_tell(own.busy_fd);
    if (own.whole)
        tree_whole();
    spawn_open(own.score_fd, own.open_files);
    exit_open(own.oom_fd);
    stream_open(own.in_fd, own.out_fd, (own.oom_fd >= 0 ? 1 : 0) | (own.init ? 2 : 0));
    stream_flush();
    if (is_init) /* while the host takes in our greeting */
        agent_look_ahead();
    loop_run();
}
