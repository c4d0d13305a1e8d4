/* The seccomp filters of everything that runs in a sandbox, the agent included.
 *
 * Two, because compiling a filter takes the kernel a quarter of a millisecond: the large one goes in while a blank is
 * made, off everybody's path, and leaves open the three calls that a birth still needs; the small one closes them.
 *
 * What is not known here is refused: numbers above LAST_REVIEWED answer ENOSYS, as an older kernel would. Below it, the
 * table names what is refused and why. Calls allowed without looking at their arguments are answered from the kernel's
 * per-filter bitmap and cost nothing; the tree is balanced so that computing that bitmap at installation is cheap. */
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

enum { LAST_REVIEWED = 462 }; /* mseal, Linux 6.10 */

static const struct {
    int number;
    int error;
} refused[] = {
/* clang-format off */
#define NO(name, error) {__NR_##name, error},
    /* A new kernel surface: namespaces and mounts. A sandbox has the ones it was given. */
    NO(unshare, EPERM) NO(setns, EPERM) NO(umount2, EPERM) NO(pivot_root, EPERM) /* and what filter_seal refuses */
    {428 /* open_tree */, EPERM}, {430 /* fsopen */, EPERM}, {431 /* fsconfig */, EPERM},
    {432 /* fsmount */, EPERM}, {433 /* fspick */, EPERM}, {442 /* mount_setattr */, EPERM},
    {435 /* clone3 */, ENOSYS}, /* its flags are in memory, out of a filter's sight: libc falls back to clone */
    /* Handles reach around the root: name_to_handle_at is harmless alone, but has no use without the other. */
    NO(open_by_handle_at, EPERM) NO(name_to_handle_at, EPERM)
    /* Large, young or often exploited interfaces that builds and tests do not need. */
    NO(bpf, EPERM) NO(perf_event_open, EPERM) NO(userfaultfd, EPERM) NO(fanotify_init, EPERM) NO(fanotify_mark, EPERM)
    {425 /* io_uring_setup */, ENOSYS}, {426 /* io_uring_enter */, ENOSYS}, {427 /* io_uring_register */, ENOSYS},
    NO(vmsplice, EPERM) {453 /* map_shadow_stack */, ENOSYS},
    {459 /* lsm_get_self_attr */, ENOSYS}, {460 /* lsm_set_self_attr */, ENOSYS}, {461 /* lsm_list_modules */, ENOSYS},
    /* Keyrings are not namespaced: a key could be read by the next sandbox. */
    NO(add_key, EPERM) NO(request_key, EPERM) NO(keyctl, EPERM)
    /* The machine: modules, clocks, quotas, accounting, power, swap, logs. */
    NO(init_module, EPERM) NO(finit_module, EPERM) NO(delete_module, EPERM) NO(kexec_load, EPERM)
    NO(reboot, EPERM) NO(swapon, EPERM) NO(swapoff, EPERM) NO(acct, EPERM) NO(quotactl, EPERM)
    {443 /* quotactl_fd */, EPERM}, NO(settimeofday, EPERM) NO(clock_settime, EPERM) NO(syslog, EPERM)
    NO(vhangup, EPERM) NO(lookup_dcookie, EPERM) NO(nfsservctl, ENOSYS) NO(sethostname, EPERM) NO(setdomainname, EPERM)
    /* Placement of other processes' memory. */
    NO(move_pages, EPERM) NO(migrate_pages, EPERM)
#ifdef __x86_64__
    NO(kexec_file_load, EPERM) NO(iopl, EPERM) NO(ioperm, EPERM) NO(modify_ldt, EPERM) NO(uselib, ENOSYS)
    NO(ustat, ENOSYS) NO(sysfs, ENOSYS) NO(_sysctl, ENOSYS) NO(create_module, ENOSYS) NO(get_kernel_syms, ENOSYS)
    NO(query_module, ENOSYS) NO(getpmsg, ENOSYS) NO(putpmsg, ENOSYS) NO(afs_syscall, ENOSYS) NO(tuxcall, ENOSYS)
    NO(security, ENOSYS) NO(vserver, ENOSYS) NO(epoll_ctl_old, ENOSYS) NO(epoll_wait_old, ENOSYS)
#endif
#undef NO
    /* clang-format on */
};

enum { MAX_CODE = 1024 };
static struct sock_filter code[MAX_CODE];
static unsigned short length;
static short verdicts[LAST_REVIEWED + 1]; /* 0: allow; > 0: errno; -1: look at the arguments */

static void emit(uint16_t op, uint32_t k, uint8_t jt, uint8_t jf) {
    if (length == MAX_CODE)
        abort();
    code[length++] = (struct sock_filter){.code = op, .jt = jt, .jf = jf, .k = k};
}

static void emit_return(int verdict) {
    emit(BPF_RET | BPF_K, verdict == 0 ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | (uint32_t)verdict, 0, 0);
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
    while (same < high && verdicts[same + 1] == verdicts[low] && verdicts[low] != -1)
        same++;
    if (same == high) {
        if (verdicts[low] == -1)
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

static void build(void) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        verdicts[refused[i].number] = (short)refused[i].error;
    verdicts[__NR_clone] = verdicts[__NR_ioctl] = verdicts[__NR_personality] = verdicts[__NR_socket] = -1;
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
