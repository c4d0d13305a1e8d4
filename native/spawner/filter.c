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
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "spawner.h"

#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#ifndef SOL_TCP
#define SOL_TCP 6
#endif

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
    ALLOW(umask) ALLOW(fsync) ALLOW(fdatasync) ALLOW(sync_file_range) ALLOW(fadvise64) ALLOW(readahead)
    ALLOW(copy_file_range) ALLOW(sendfile) ALLOW(splice) ALLOW(tee)
    452 /* fchmodat2 */,
    /* Attributes: package managers, tar, git, cp -a. Setting them is looked at below. */
    ALLOW(getxattr) ALLOW(lgetxattr) ALLOW(fgetxattr) ALLOW(listxattr)
    ALLOW(llistxattr) ALLOW(flistxattr) ALLOW(removexattr) ALLOW(lremovexattr) ALLOW(fremovexattr)
    464 /* getxattrat */, 465 /* listxattrat */, 466 /* removexattrat */,
    /* Memory: loaders, allocators, garbage collectors; protection keys and sealing only restrict. NUMA: the JVM. */
    ALLOW(mmap) ALLOW(munmap) ALLOW(mprotect) ALLOW(mremap) ALLOW(madvise) ALLOW(msync) ALLOW(mincore) ALLOW(brk)
    ALLOW(mlock) ALLOW(mlock2) ALLOW(munlock) ALLOW(mlockall) ALLOW(munlockall) ALLOW(memfd_create) ALLOW(membarrier)
    ALLOW(pkey_mprotect) ALLOW(pkey_alloc) ALLOW(pkey_free) ALLOW(set_mempolicy) ALLOW(get_mempolicy)
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
    ALLOW(setgroups) ALLOW(capget) ALLOW(capset)
    /* Scheduling and limits: build tools ask for processors and lower their own priority. Setting them is looked at
     * below, but for the caller's own limits. */
    ALLOW(sched_yield) ALLOW(sched_getaffinity) ALLOW(sched_getparam) ALLOW(sched_getscheduler)
    ALLOW(sched_get_priority_max) ALLOW(sched_get_priority_min) ALLOW(sched_rr_get_interval) ALLOW(sched_getattr)
    ALLOW(getpriority) ALLOW(ioprio_get) ALLOW(getrlimit) ALLOW(setrlimit) ALLOW(getrusage) ALLOW(times) ALLOW(getcpu)
    /* Time: reading it and waiting. adjtimex reads too; setting needs a capability nobody has. */
    ALLOW(clock_gettime) ALLOW(clock_getres) ALLOW(clock_nanosleep) ALLOW(nanosleep) ALLOW(gettimeofday) ALLOW(getitimer)
    ALLOW(setitimer) ALLOW(timer_create) ALLOW(timer_settime) ALLOW(timer_gettime) ALLOW(timer_getoverrun)
    ALLOW(timer_delete) ALLOW(timerfd_create) ALLOW(timerfd_settime) ALLOW(timerfd_gettime) ALLOW(adjtimex)
    ALLOW(clock_adjtime)
    /* Waiting for events: event loops, watchers. No legacy aio: its contexts come from one table of the machine, and
     * databases do without. */
    ALLOW(ppoll) ALLOW(pselect6) ALLOW(epoll_create1) ALLOW(epoll_ctl) ALLOW(epoll_pwait) ALLOW(eventfd2)
    ALLOW(inotify_init1) ALLOW(inotify_add_watch) ALLOW(inotify_rm_watch)
    441 /* epoll_pwait2 */,
    /* Between processes of one sandbox: the ipc namespace is its own. */
    ALLOW(pipe2) ALLOW(shmget) ALLOW(shmat) ALLOW(shmdt) ALLOW(shmctl) ALLOW(semget) ALLOW(semop) ALLOW(semtimedop)
    ALLOW(semctl) ALLOW(msgget) ALLOW(msgsnd) ALLOW(msgrcv) ALLOW(msgctl) ALLOW(mq_open) ALLOW(mq_unlink)
    ALLOW(mq_timedsend) ALLOW(mq_timedreceive) ALLOW(mq_notify) ALLOW(mq_getsetattr)
    /* Sockets, once made: the network namespace is its own. Which may be made, and with which
     * options, is decided below. */
    ALLOW(connect) ALLOW(bind) ALLOW(listen) ALLOW(accept) ALLOW(accept4) ALLOW(sendto) ALLOW(recvfrom) ALLOW(sendmsg)
    ALLOW(recvmsg) ALLOW(sendmmsg) ALLOW(recvmmsg) ALLOW(shutdown) ALLOW(getsockname) ALLOW(getpeername)
    ALLOW(getsockopt)
    /* About the system, and randomness. */
    ALLOW(uname) ALLOW(sysinfo) ALLOW(getrandom)
    /* Debuggers and tracers (gdb, strace, delve), of one's own processes: the agent is not dumpable. */
    ALLOW(ptrace) ALLOW(process_vm_readv) ALLOW(process_vm_writev)
    /* Programs that sandbox themselves further: a rule set can only take away, and is charged to who makes it. */
    444 /* landlock_create_ruleset */, 445 /* landlock_add_rule */, 446 /* landlock_restrict_self */,
    /* A birth's last steps: refused by filter_seal before anything else runs. */
    ALLOW(mount) ALLOW(chroot) ALLOW(move_mount) ALLOW(seccomp)
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
    /* Placement of memory: of other processes, and policies of shared mappings, which are charged to nobody. */
    NO(move_pages, EPERM) NO(migrate_pages, EPERM) NO(mbind, EPERM)
#ifdef __x86_64__
    NO(kexec_file_load, EPERM) NO(iopl, EPERM) NO(ioperm, EPERM) NO(modify_ldt, EPERM)
#endif
#undef NO
};

/* Socket options that may be set. What is left out attaches programs (SO_ATTACH_*), keeps copies of what was sent in the
 * error queue (SO_TIMESTAMPING, SO_TXTIME, SO_ZEROCOPY, IP*_RECVERR), takes memory that is charged to nobody (groups,
 * flow labels, sticky headers, keys), loads protocols (TCP_ULP) or needs a capability. 0 ends a list. */
enum { MAX_OPTION = 127 };
static const struct {
    short level;
    uint8_t options[56];
} settable[] = {
    {SOL_SOCKET,
     {SO_DEBUG, SO_REUSEADDR, SO_DONTROUTE, SO_BROADCAST, SO_SNDBUF, SO_KEEPALIVE, SO_OOBINLINE, SO_NO_CHECK, SO_PRIORITY,
      SO_LINGER, SO_BSDCOMPAT, SO_REUSEPORT, SO_PASSCRED, SO_RCVLOWAT, SO_SNDLOWAT, SO_RCVTIMEO, SO_SNDTIMEO,
      SO_BINDTODEVICE, SO_DETACH_FILTER, SO_TIMESTAMP, SO_PASSSEC, SO_TIMESTAMPNS, SO_MARK, SO_RXQ_OVFL, SO_PEEK_OFF,
      SO_NOFCS, SO_LOCK_FILTER, SO_SELECT_ERR_QUEUE, SO_BUSY_POLL, SO_MAX_PACING_RATE, SO_INCOMING_CPU, SO_CNX_ADVICE,
      62 /* BINDTOIFINDEX */, 63, 64 /* TIMESTAMP*_NEW */, 66, 67 /* *TIMEO_NEW */, 68 /* DETACH_REUSEPORT_BPF */,
      69, 70 /* busy polling */, 72 /* BUF_LOCK */, 74 /* TXREHASH */, 75 /* RCVMARK */, 76 /* PASSPIDFD */,
      82 /* RCVPRIORITY */, 83 /* PASSRIGHTS */}},
    {SOL_IP, /* TOS to RETOPTS, PKTINFO to MTU_DISCOVER, RECVTTL, RECVTOS, FREEBIND, TRANSPARENT to BIND_ADDRESS_NO_PORT;
              * multicast as a sender, DROP_MEMBERSHIP, MULTICAST_ALL, UNICAST_IF, LOCAL_PORT_RANGE */
     {1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 15, 19, 20, 21, 22, 23, 24, 32, 33, 34, 36, 49, 50, 51}},
    {SOL_IPV6, /* the same, V6ONLY, and what is told of received packets */
     {1, 2, 3, 4, 5, 7, 8, 11, 16, 17, 18, 19, 21, 23, 24, 26, 28, 29, 30, 33, 49, 50, 51, 52, 53, 56, 58, 60, 61, 62,
      66, 67, 70, 72, 73, 74, 75, 76, 77, 78}},
    {SOL_TCP, /* all but MD5 and AO keys, REPAIR, ULP */
     {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 18, 23, 24, 25, 27, 30, 33, 34, 35, 36, 37, 44, 45}},
    {SOL_UDP, {1 /* CORK */, 101, 102 /* NO_CHECK6 */, 103 /* SEGMENT */, 104 /* GRO */}},
    {270 /* SOL_NETLINK */, {1, 2, 3, 4, 5, 8, 10, 11, 12}}, /* all but rings */
};
/* Attributes are kept in memory, and of an access list's the kernel keeps a copy that is charged to nobody: no larger
 * than the file's own inode, which is charged. */
enum { MAX_ATTRIBUTE = 1024 };
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

static void refuse_if_above(uint32_t value, int error) {
    emit(BPF_JMP | BPF_JGT | BPF_K, value, 0, 1);
    emit_return(error);
}

/* Allows the options of one word of 32, by a bit for each. */
static void allow_options(uint32_t first, uint32_t bits) {
    load_argument(2);
    emit(BPF_ALU | BPF_SUB | BPF_K, first, 0, 0);
    emit(BPF_JMP | BPF_JGE | BPF_K, 32, 5, 0);
    emit(BPF_MISC | BPF_TAX, 0, 0, 0);
    emit(BPF_LD | BPF_IMM, 1, 0, 0);
    emit(BPF_ALU | BPF_LSH | BPF_X, 0, 0, 0);
    emit(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    emit_return(0);
}

static void check_options(void) {
    for (size_t i = 0; i < sizeof settable / sizeof *settable; i++) {
        uint32_t words[(MAX_OPTION + 1) / 32] = {0};
        for (const uint8_t *option = settable[i].options; *option; option++)
            words[*option / 32] |= 1u << *option % 32;
        load_argument(1);
        emit(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)settable[i].level, 1, 0);
        unsigned short jump = length;
        emit(BPF_JMP | BPF_JA, 0, 0, 0);
        if (settable[i].level == SOL_SOCKET) { /* as if it were above the machine's bound: queues stay as they are */
            load_argument(2);
            refuse_if_equal(SO_RCVBUF, DO_NOTHING);
        }
        for (uint32_t word = 0; word < sizeof words / sizeof *words; word++)
            if (words[word])
                allow_options(32 * word, words[word]);
        emit_return(ENOPROTOOPT);
        code[jump].k = (uint32_t)(length - jump - 1);
    }
    emit_return(ENOPROTOOPT);
}

/* The agent, which is PID 1 inside, has the ids of root inside: nobody may set its limits, priority or processors. */
static void spare_agent(int argument) {
    load_argument(argument);
    refuse_if_equal(1, EPERM);
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
    case __NR_socket: /* unix, tcp, udp and pings, and netlink's routing family; nothing else (vsock, alg, packet, sctp,
                         …) */
        load_argument(0);
        allow_if_equal(AF_UNIX);
        emit(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 3, 0);
        emit(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 2, 0);
        emit(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 1, 0);
        emit_return(EAFNOSUPPORT);
        load_argument(2);
        allow_if_equal(0);
        load_argument(0);
        refuse_if_equal(AF_NETLINK, EPROTONOSUPPORT);
        load_argument(2);
        allow_if_equal(IPPROTO_TCP);
        allow_if_equal(IPPROTO_UDP);
        allow_if_equal(IPPROTO_ICMP);
        allow_if_equal(IPPROTO_ICMPV6);
        emit_return(EPROTONOSUPPORT);
        break;
    case __NR_setsockopt:
        check_options();
        break;
    case __NR_setxattr:
    case __NR_lsetxattr:
    case __NR_fsetxattr:
        load_argument(3);
        refuse_if_above(MAX_ATTRIBUTE, ENOSPC);
        break;
    case __NR_prctl: /* a filter, as by a kernel without them: see filter_seal */
        load_argument(0);
        refuse_if_equal(PR_SET_SECCOMP, EINVAL);
        break;
    case __NR_prlimit64:
    case __NR_sched_setparam:
    case __NR_sched_setscheduler:
    case __NR_sched_setattr:
    case __NR_sched_setaffinity:
        spare_agent(0);
        break;
    case __NR_setpriority:
    case __NR_ioprio_set: /* also not by user, which the agent's is among */
        spare_agent(1);
        load_argument(0);
        refuse_if_equal(number == __NR_setpriority ? PRIO_USER : 3 /* IOPRIO_WHO_USER */, EPERM);
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

static const short looked_at[] = {
    __NR_clone,       __NR_ioctl,          __NR_personality,        __NR_prctl,         __NR_socket,
    __NR_socketpair,  __NR_setsockopt,     __NR_setxattr,           __NR_lsetxattr,     __NR_fsetxattr,
    __NR_prlimit64,   __NR_sched_setparam, __NR_sched_setscheduler, __NR_sched_setattr, __NR_sched_setaffinity,
    __NR_setpriority, __NR_ioprio_set,
};

static void decide(void) {
    for (int i = 0; i <= LAST_REVIEWED; i++)
        verdicts[i] = ENOSYS;
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        verdicts[allowed[i]] = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        verdicts[refused[i].number] = (short)refused[i].error;
    for (size_t i = 0; i < sizeof looked_at / sizeof *looked_at; i++)
        verdicts[looked_at[i]] = LOOK;
    verdicts[__NR_sync] = verdicts[__NR_syncfs] =
        DO_NOTHING; /* would flush every disk of the host; no sandbox outlives a power cut anyway */
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

/* No more filters, as on a kernel without them: each takes room for compiled code, of which the machine has one budget,
 * and births need some. */
const char *filter_seal(void) { /* the large filter has refused other architectures already */
    struct sock_filter seal[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mount, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_chroot, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_move_mount, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_seccomp, 2, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
    };
    return install(seal, sizeof seal / sizeof *seal);
}
