/* The seccomp filters of everything that runs in a sandbox, the agent included.
 *
 * Two, because compiling a filter takes the kernel a quarter of a millisecond: the large one goes in while a blank is
 * made, off everybody's path, and leaves open the three calls that a birth still needs; the small one closes them.
 *
 * What is not allowed below is refused: with ENOSYS, as by a kernel without it, so that programs fall back, or with
 * EPERM where "not permitted" is what they know how to handle. Each group says what needs it. Calls allowed without
 * looking at their arguments are answered from the kernel's per-filter bitmap and cost nothing; the tree is balanced so
 * that computing that bitmap at installation is cheap. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "spawner.h"

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the filter knows x86_64 and aarch64"
#endif

enum { LAST_REVIEWED = 466 }; /* removexattrat, Linux 6.13 */

/* clang-format off */
#define ALLOW(name) __NR_##name,
static const short allowed[] = {
    /* Files and directories: every program. What may be touched is decided by the mounts and by ids. */
    ALLOW(read) ALLOW(write) ALLOW(readv) ALLOW(writev) ALLOW(pread64) ALLOW(pwrite64) ALLOW(preadv) ALLOW(pwritev)
    ALLOW(preadv2) ALLOW(pwritev2) ALLOW(openat) ALLOW(openat2) ALLOW(close) ALLOW(close_range) ALLOW(lseek) ALLOW(dup)
    ALLOW(dup3) ALLOW(fcntl) ALLOW(flock) ALLOW(fstat) ALLOW(newfstatat) ALLOW(statx) ALLOW(statfs) ALLOW(fstatfs)
    ALLOW(faccessat) ALLOW(faccessat2) ALLOW(getdents64) ALLOW(getcwd) ALLOW(chdir) ALLOW(fchdir) ALLOW(mkdirat)
    ALLOW(mknodat) /* fifos and sockets; devices need a capability nobody has */
    ALLOW(unlinkat) ALLOW(renameat) ALLOW(renameat2) ALLOW(linkat) ALLOW(symlinkat) ALLOW(readlinkat) ALLOW(truncate)
    ALLOW(ftruncate) ALLOW(fallocate) ALLOW(fchmod) ALLOW(fchmodat) ALLOW(fchown) ALLOW(fchownat) ALLOW(utimensat)
    ALLOW(umask) ALLOW(fsync) ALLOW(fdatasync) ALLOW(sync_file_range) ALLOW(syncfs) ALLOW(fadvise64) ALLOW(readahead)
    ALLOW(copy_file_range) ALLOW(sendfile) ALLOW(splice) ALLOW(tee)
    452 /* fchmodat2 */,
    /* Attributes: package managers, tar, git, cp -a. */
    ALLOW(setxattr) ALLOW(lsetxattr) ALLOW(fsetxattr) ALLOW(getxattr) ALLOW(lgetxattr) ALLOW(fgetxattr) ALLOW(listxattr)
    ALLOW(llistxattr) ALLOW(flistxattr) ALLOW(removexattr) ALLOW(lremovexattr) ALLOW(fremovexattr)
    463 /* setxattrat */, 464 /* getxattrat */, 465 /* listxattrat */, 466 /* removexattrat */,
    /* Memory: loaders, allocators, garbage collectors; protection keys and sealing only restrict. NUMA: the JVM, numactl. */
    ALLOW(mmap) ALLOW(munmap) ALLOW(mprotect) ALLOW(mremap) ALLOW(madvise) ALLOW(msync) ALLOW(mincore) ALLOW(brk)
    ALLOW(mlock) ALLOW(mlock2) ALLOW(munlock) ALLOW(mlockall) ALLOW(munlockall) ALLOW(memfd_create) ALLOW(membarrier)
    ALLOW(pkey_mprotect) ALLOW(pkey_alloc) ALLOW(pkey_free) ALLOW(mbind) ALLOW(set_mempolicy) ALLOW(get_mempolicy)
    462 /* mseal */,
    /* Processes and threads, their ends and their waiting. New namespaces are told apart below. */
    ALLOW(execve) ALLOW(execveat) ALLOW(exit) ALLOW(exit_group) ALLOW(wait4) ALLOW(waitid) ALLOW(kill) ALLOW(tkill)
    ALLOW(tgkill) ALLOW(getpid) ALLOW(getppid) ALLOW(gettid) ALLOW(getpgid) ALLOW(setpgid) ALLOW(getsid) ALLOW(setsid)
    ALLOW(set_tid_address) ALLOW(set_robust_list) ALLOW(get_robust_list) ALLOW(futex) ALLOW(rseq) ALLOW(restart_syscall)
    ALLOW(pidfd_open) ALLOW(pidfd_send_signal)
    449 /* futex_waitv */, 454 /* futex_wake */, 455 /* futex_wait */, 456 /* futex_requeue */,
    /* Signals. */
    ALLOW(rt_sigaction) ALLOW(rt_sigprocmask) ALLOW(rt_sigreturn) ALLOW(rt_sigpending) ALLOW(rt_sigtimedwait)
    ALLOW(rt_sigqueueinfo) ALLOW(rt_tgsigqueueinfo) ALLOW(rt_sigsuspend) ALLOW(sigaltstack) ALLOW(signalfd4)
    /* Ids and capabilities: package managers and servers change to other users of the sandbox's own range. */
    ALLOW(getuid) ALLOW(geteuid) ALLOW(getgid) ALLOW(getegid) ALLOW(getgroups) ALLOW(setuid) ALLOW(setgid) ALLOW(setreuid)
    ALLOW(setregid) ALLOW(setresuid) ALLOW(getresuid) ALLOW(setresgid) ALLOW(getresgid) ALLOW(setfsuid) ALLOW(setfsgid)
    ALLOW(setgroups) ALLOW(capget) ALLOW(capset) ALLOW(prctl)
    /* Scheduling and limits: build tools ask for processors and lower their own priority. */
    ALLOW(sched_yield) ALLOW(sched_getaffinity) ALLOW(sched_setaffinity) ALLOW(sched_getparam) ALLOW(sched_setparam)
    ALLOW(sched_getscheduler) ALLOW(sched_setscheduler) ALLOW(sched_get_priority_max) ALLOW(sched_get_priority_min)
    ALLOW(sched_rr_get_interval) ALLOW(sched_getattr) ALLOW(sched_setattr) ALLOW(getpriority) ALLOW(setpriority)
    ALLOW(ioprio_get) ALLOW(ioprio_set) ALLOW(getrlimit) ALLOW(setrlimit) ALLOW(prlimit64) ALLOW(getrusage) ALLOW(times)
    ALLOW(getcpu)
    /* Time: reading it and waiting. adjtimex reads too; setting needs a capability nobody has. */
    ALLOW(clock_gettime) ALLOW(clock_getres) ALLOW(clock_nanosleep) ALLOW(nanosleep) ALLOW(gettimeofday) ALLOW(getitimer)
    ALLOW(setitimer) ALLOW(timer_create) ALLOW(timer_settime) ALLOW(timer_gettime) ALLOW(timer_getoverrun)
    ALLOW(timer_delete) ALLOW(timerfd_create) ALLOW(timerfd_settime) ALLOW(timerfd_gettime) ALLOW(adjtimex)
    ALLOW(clock_adjtime)
    /* Waiting for events: event loops, watchers. Legacy aio: databases. */
    ALLOW(ppoll) ALLOW(pselect6) ALLOW(epoll_create1) ALLOW(epoll_ctl) ALLOW(epoll_pwait) ALLOW(eventfd2)
    ALLOW(inotify_init1) ALLOW(inotify_add_watch) ALLOW(inotify_rm_watch) ALLOW(io_setup) ALLOW(io_destroy)
    ALLOW(io_submit) ALLOW(io_cancel) ALLOW(io_getevents) ALLOW(io_pgetevents) 441 /* epoll_pwait2 */,
    /* Between processes of one sandbox: the ipc namespace is its own. */
    ALLOW(pipe2) ALLOW(shmget) ALLOW(shmat) ALLOW(shmdt) ALLOW(shmctl) ALLOW(semget) ALLOW(semop) ALLOW(semtimedop)
    ALLOW(semctl) ALLOW(msgget) ALLOW(msgsnd) ALLOW(msgrcv) ALLOW(msgctl) ALLOW(mq_open) ALLOW(mq_unlink)
    ALLOW(mq_timedsend) ALLOW(mq_timedreceive) ALLOW(mq_notify) ALLOW(mq_getsetattr)
    /* Sockets, once made: the network namespace is its own. Which may be made is decided below. */
    ALLOW(connect) ALLOW(bind) ALLOW(listen) ALLOW(accept) ALLOW(accept4) ALLOW(sendto) ALLOW(recvfrom) ALLOW(sendmsg)
    ALLOW(recvmsg) ALLOW(sendmmsg) ALLOW(recvmmsg) ALLOW(shutdown) ALLOW(getsockname) ALLOW(getpeername)
    ALLOW(setsockopt) ALLOW(getsockopt)
    /* About the system, and randomness. */
    ALLOW(uname) ALLOW(sysinfo) ALLOW(getrandom)
    /* Debuggers and tracers (gdb, strace, delve), of one's own processes: the agent is not dumpable. */
    ALLOW(ptrace) ALLOW(process_vm_readv) ALLOW(process_vm_writev)
    /* Programs that sandbox themselves further: a filter or a rule set can only take away. */
    ALLOW(seccomp) 444 /* landlock_create_ruleset */, 445 /* landlock_add_rule */, 446 /* landlock_restrict_self */,
    /* A birth's last steps: refused by filter_seal before anything else runs. */
    ALLOW(mount) ALLOW(chroot) ALLOW(move_mount)
#ifdef __x86_64__
    /* Older names of the above. */
    ALLOW(open) ALLOW(creat) ALLOW(stat) ALLOW(lstat) ALLOW(access) ALLOW(readlink) ALLOW(mkdir) ALLOW(rmdir) ALLOW(mknod)
    ALLOW(unlink) ALLOW(rename) ALLOW(link) ALLOW(symlink) ALLOW(chmod) ALLOW(chown) ALLOW(lchown) ALLOW(getdents)
    ALLOW(utime) ALLOW(utimes) ALLOW(futimesat) ALLOW(dup2) ALLOW(pipe) ALLOW(fork) ALLOW(vfork) ALLOW(getpgrp)
    ALLOW(pause) ALLOW(alarm) ALLOW(time) ALLOW(poll) ALLOW(select) ALLOW(epoll_create) ALLOW(epoll_wait) ALLOW(eventfd)
    ALLOW(signalfd) ALLOW(inotify_init) ALLOW(arch_prctl)
#endif
};
#undef ALLOW

static const struct {
    int number;
    int error;
} refused[] = { /* not with ENOSYS: their callers know what to do without the permission */
#define NO(name, error) {__NR_##name, error},
    /* A new kernel surface: namespaces and mounts. A sandbox has the ones it was given. */
    NO(unshare, EPERM) NO(setns, EPERM) NO(umount2, EPERM) NO(pivot_root, EPERM) /* and what filter_seal refuses */
    {428 /* open_tree */, EPERM}, {430 /* fsopen */, EPERM}, {431 /* fsconfig */, EPERM},
    {432 /* fsmount */, EPERM}, {433 /* fspick */, EPERM}, {442 /* mount_setattr */, EPERM},
    {435 /* clone3 */, ENOSYS}, /* its flags are in memory, out of a filter's sight: libc falls back to clone */
    /* Handles reach around the root: name_to_handle_at is harmless alone, but has no use without the other. */
    NO(open_by_handle_at, EPERM) NO(name_to_handle_at, EPERM)
    /* Large, young or often exploited interfaces that builds and tests do not need; io_uring is ENOSYS. */
    NO(bpf, EPERM) NO(perf_event_open, EPERM) NO(userfaultfd, EPERM) NO(fanotify_init, EPERM) NO(fanotify_mark, EPERM)
    NO(vmsplice, EPERM) NO(kcmp, EPERM) {438 /* pidfd_getfd */, EPERM},
    /* Keyrings are not namespaced: a key could be read by the next sandbox. */
    NO(add_key, EPERM) NO(request_key, EPERM) NO(keyctl, EPERM)
    /* The machine: modules, clocks, quotas, accounting, power, swap, logs. */
    NO(init_module, EPERM) NO(finit_module, EPERM) NO(delete_module, EPERM) NO(kexec_load, EPERM)
    NO(reboot, EPERM) NO(swapon, EPERM) NO(swapoff, EPERM) NO(acct, EPERM) NO(quotactl, EPERM)
    {443 /* quotactl_fd */, EPERM}, NO(settimeofday, EPERM) NO(clock_settime, EPERM) NO(syslog, EPERM)
    NO(vhangup, EPERM) NO(sethostname, EPERM) NO(setdomainname, EPERM)
    /* Placement of other processes' memory. */
    NO(move_pages, EPERM) NO(migrate_pages, EPERM)
#ifdef __x86_64__
    NO(kexec_file_load, EPERM) NO(iopl, EPERM) NO(ioperm, EPERM) NO(modify_ldt, EPERM)
#endif
#undef NO
};
/* clang-format on */

enum { MAX_CODE = 1024 };
static struct sock_filter code[MAX_CODE];
static unsigned short length;
enum { LOOK = -1, DO_NOTHING = -2 };
static short verdicts[LAST_REVIEWED + 1]; /* 0: allow; > 0: errno; LOOK: at the arguments; DO_NOTHING, successfully */

static void emit(uint16_t op, uint32_t k, uint8_t jt, uint8_t jf) {
    if (length == MAX_CODE)
        abort();
    code[length++] = (struct sock_filter){.code = op, .jt = jt, .jf = jf, .k = k};
}

static void emit_return(int verdict) {
    uint32_t error = verdict == DO_NOTHING ? 0 : (uint32_t)verdict;
    emit(BPF_RET | BPF_K, verdict == 0 ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | error, 0, 0);
}

static void load_argument(int index) { /* the low half: every checked argument is 32 bits wide */
    emit(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(offsetof(struct seccomp_data, args) + 8 * (size_t)index), 0, 0);
}

static void refuse_if_equal(uint32_t value, int error) {
    emit(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    emit_return(error);
}

static void allow_if_equal(uint32_t value) {
    emit(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    emit_return(0);
}

/* Each block starts with the number already matched and always returns. */
static void check_arguments(int number) {
    switch (number) {
    case __NR_clone: /* no new namespaces: NEWTIME NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET */
        load_argument(0);
        emit(BPF_JMP | BPF_JSET | BPF_K, 0x7E020080, 0, 1);
        emit_return(EPERM);
        break;
    case __NR_ioctl: /* typing into a terminal somebody else reads */
        load_argument(1);
        refuse_if_equal(TIOCSTI, EPERM);
        refuse_if_equal(TIOCLINUX, EPERM);
        break;
    case __NR_personality: /* query, default, no address randomisation (debuggers) */
        load_argument(0);
        allow_if_equal(0);
        allow_if_equal(0x0040000);
        allow_if_equal(0xFFFFFFFF);
        emit_return(EPERM);
        break;
    case __NR_socketpair: /* other families have pairs too */
        load_argument(0);
        allow_if_equal(AF_UNIX);
        emit_return(EAFNOSUPPORT);
        break;
    case __NR_socket: /* unix, inet, inet6, and netlink's routing family; nothing else (vsock, alg, packet, …) */
        load_argument(0);
        allow_if_equal(AF_UNIX);
        allow_if_equal(AF_INET);
        allow_if_equal(AF_INET6);
        emit(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 1, 0);
        emit_return(EAFNOSUPPORT);
        load_argument(2);
        allow_if_equal(0);
        emit_return(EPROTONOSUPPORT);
        break;
    }
    emit_return(0);
}

/* Jumps reach 255 instructions: the two halves are reached by a conditional jump over one long jump. */
static void emit_tree(int low, int high) {
    int same = low;
    while (same < high && verdicts[same + 1] == verdicts[low] && verdicts[low] != LOOK)
        same++;
    if (same == high) {
        if (verdicts[low] == LOOK)
            check_arguments(low);
        else
            emit_return(verdicts[low]);
        return;
    }
    int middle = low + (high - low + 1) / 2;
    emit(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)middle, 0, 1);
    unsigned short jump = length;
    emit(BPF_JMP | BPF_JA, 0, 0, 0);
    emit_tree(low, middle - 1);
    code[jump].k = (uint32_t)(length - jump - 1);
    emit_tree(middle, high);
}

static void decide(void) {
    for (int i = 0; i <= LAST_REVIEWED; i++)
        verdicts[i] = ENOSYS;
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        verdicts[allowed[i]] = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        verdicts[refused[i].number] = (short)refused[i].error;
    verdicts[__NR_clone] = verdicts[__NR_ioctl] = verdicts[__NR_personality] = LOOK;
    verdicts[__NR_socket] = verdicts[__NR_socketpair] = LOOK;
    verdicts[__NR_sync] = DO_NOTHING; /* would flush every disk of the host; no sandbox outlives a power cut anyway */
}

static void build(void) {
    decide();
    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch), 0, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    emit(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0); /* 32-bit entry points see other numbers */
    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    emit(BPF_JMP | BPF_JGT | BPF_K, LAST_REVIEWED, 0, 1); /* x32 numbers have bit 30 set: refused here too */
    emit_return(ENOSYS);
    emit_tree(0, LAST_REVIEWED);
}

void filter_prepare(void) {
    if (length == 0)
        build();
}

static const char *install(struct sock_filter *filter, unsigned short size) {
    struct sock_fprog program = {.len = size, .filter = filter};
    /* SPEC_ALLOW: the default would also switch on speculative-store mitigations for the whole sandbox, a cost on every
     * instruction that the kernel itself no longer makes the default. */
    if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) != 0)
        return "install a seccomp filter";
    return NULL;
}

const char *filter_install(void) {
    return install(code, length);
}

const char *filter_seal(void) { /* the large filter has refused other architectures already */
    struct sock_filter seal[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mount, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_chroot, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_move_mount, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    return install(seal, sizeof seal / sizeof *seal);
}
