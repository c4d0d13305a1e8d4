/* Starting a process: vfork, a few system calls in the child, exec.
 *
 * The child shares our memory until it execs, so it only makes system calls and writes its failure into the request.
 * All our signals are blocked and at their defaults (serve.c), our umask is what commands get, our descriptors are
 * close-on-exec and 0 to 2 are /dev/null: so the child has little left to undo. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

struct failure {
    volatile int step, errnum;
};

struct prepared { /* what the child needs and must not work out itself */
    const struct spawn *spawn;
    const char *path;       /* to search; NULL: argv[0] is a path */
    bool switch_user, copy; /* copy: of our memory, and without our descriptors */
    gid_t groups[GROUP_LIMIT];
    int group_count;
    struct failure *failure;
};

static int own_score_fd = -1;
static struct rlimit open_files; /* 0: leave them */
static uid_t own_uid;
static gid_t own_gid;

/* For a child with a copy of our memory, which has just this page in common with us. */
static struct failure *common_failure(void) {
    static struct failure *page;
    if (!page)
        page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return page;
}
#define START_COPY() ((pid_t)syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0))

#ifdef DUTYFREE_SANITIZE
/* AddressSanitizer's own memory does not survive a child that shares it. */
#define START_CHILD() START_COPY()
#define SHARED_FAILURE() common_failure()
#else
#define START_CHILD() vfork()
#define SHARED_FAILURE() (&own_failure)
static struct failure own_failure;
#endif

/* With fs.suid_dumpable at 1 the kernel lets others of the same ids look into whoever changes to another user, and into
 * all who share memory with it: us. */
static bool change_of_user_opens(void) {
    static int fd = -1;
    char value = '0';
    if (fd < 0)
        fd = open("/proc/sys/fs/suid_dumpable", O_RDONLY | O_CLOEXEC);
    return fd >= 0 && pread(fd, &value, 1, 0) == 1 && value == '1';
}

void spawn_open(int score_fd, unsigned files) {
    struct rlimit own;
    own_score_fd = score_fd;
    if (getrlimit(RLIMIT_NOFILE, &own) == 0 && files < own.rlim_max)
        open_files = (struct rlimit){files, files};
    own_uid = geteuid();
    own_gid = getegid();
}

static _Noreturn void fail(const struct prepared *prepared, enum spawn_step step, int errnum) {
    prepared->failure->errnum = errnum;
    prepared->failure->step = (int)step;
    _exit(127);
}

static void exec_one(const struct spawn *spawn, const char *path, int *worst) {
    execve(path, spawn->argv, spawn->env);
    /* As execvpe: a file that may not be executed is remembered, the search goes on. */
    if (*worst != EACCES)
        *worst = errno == ENOTDIR ? ENOENT : errno;
}

static int exec_search(const struct prepared *prepared) {
    const char *name = prepared->spawn->argv[0];
    size_t name_size = strnlen(name, NAME_MAX + 1);
    char candidate[PATH_MAX + NAME_MAX + 2];
    int worst = ENOENT;
    if (!name_size || name_size > NAME_MAX)
        return name_size ? ENAMETOOLONG : ENOENT;
    for (const char *at = prepared->path;; at++) {
        const char *end = strchrnul(at, ':');
        size_t size = (size_t)(end - at);
        if (size < PATH_MAX) {
            memcpy(candidate, at, size);
            candidate[size] = '/';
            memcpy(candidate + size + (size > 0), name, name_size + 1); /* an empty entry is the current directory */
            exec_one(prepared->spawn, candidate, &worst);
            if (worst != ENOENT && worst != EACCES)
                return worst;
        }
        at = end;
        if (!*at)
            return worst;
    }
}

static void place_descriptors(const struct spawn *spawn) {
    for (int i = 0; i < 3; i++)
        if (spawn->fds[i] >= 0)
            dup2(spawn->fds[i], i);
    for (int i = 0; spawn->high && i < SPAWN_HIGH_COUNT; i++)
        dup2(spawn->high[i], SPAWN_HIGH_FD + i);
}

static void become_user(const struct prepared *prepared) {
    const struct identity *who = prepared->spawn->who;
    /* Raw calls: the libc ones would signal threads we do not have, and take locks. EPERM: a user namespace in which
     * groups cannot be changed, so none are held that could be dropped. */
    if (syscall(SYS_setgroups, prepared->group_count, prepared->groups) < 0 && errno != EPERM)
        fail(prepared, SPAWN_USER, errno);
    if (syscall(SYS_setresgid, who->gid, who->gid, who->gid) < 0 ||
        syscall(SYS_setresuid, who->uid, who->uid, who->uid) < 0)
        fail(prepared, SPAWN_USER, errno);
}

static _Noreturn void run_child(const struct prepared *prepared) {
    const struct spawn *spawn = prepared->spawn;
    setsid();
    place_descriptors(spawn);
    if (spawn->terminal >= 0 && ioctl(spawn->terminal, TIOCSCTTY, 0) < 0)
        fail(prepared, SPAWN_TERMINAL, errno);
    if (tree_marks_work()) {
        struct rlimit mark = {spawn->mark, spawn->mark};
        setrlimit(RLIMIT_RTTIME, &mark);
    }
    if (open_files.rlim_max)
        setrlimit(RLIMIT_NOFILE, &open_files);
    if (prepared->copy)
        syscall(SYS_close_range, SPAWN_HIGH_FD + SPAWN_HIGH_COUNT, ~0u, 0);
    if (prepared->switch_user)
        become_user(prepared);
    if (chdir(spawn->cwd) < 0 && !(spawn->cwd_optional && chdir("/") == 0))
        fail(prepared, SPAWN_CWD, errno);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int errnum = ENOENT;
    if (prepared->path)
        errnum = exec_search(prepared);
    else
        exec_one(spawn, spawn->argv[0], &errnum);
    fail(prepared, SPAWN_EXEC, errnum);
}

static void prepare(struct prepared *prepared, struct spawn *spawn) {
    prepared->spawn = spawn;
    prepared->path = NULL;
    if (!strchr(spawn->argv[0], '/')) {
        const char *path = env_get(spawn->env, "PATH");
        prepared->path = path ? path : "/usr/bin:/bin";
    }
    prepared->switch_user = spawn->who->uid != own_uid || spawn->who->gid != own_gid;
    prepared->group_count = prepared->switch_user ? user_groups(spawn->who, prepared->groups) : 0;
    prepared->copy = prepared->switch_user && change_of_user_opens();
    prepared->failure = prepared->copy ? common_failure() : SHARED_FAILURE();
    prepared->failure->step = SPAWN_OK;
}

pid_t agent_spawn(struct spawn *spawn) {
    struct prepared prepared;
    prepare(&prepared, spawn);
    /* The child inherits our score, so it is raised around its birth: commands die before their agent does. */
    if (own_score_fd >= 0)
        (void)!pwrite(own_score_fd, "300", 3, 0);
    pid_t pid = prepared.copy ? START_COPY() : START_CHILD();
    if (pid == 0)
        run_child(&prepared);
    int clone_errno = errno;
    if (own_score_fd >= 0)
        (void)!pwrite(own_score_fd, "0", 1, 0);
    spawn->failed = pid < 0 ? SPAWN_CLONE : (enum spawn_step)prepared.failure->step;
    spawn->errnum = pid < 0 ? clone_errno : prepared.failure->errnum;
    if (pid < 0 || spawn->failed == SPAWN_OK)
        return pid;
    waitpid(pid, NULL, 0);
    return -1;
}

const char *shell_path(bool *is_bash) {
    static const char *const shells[] = {"/bin/bash", "/usr/bin/bash"};
    static const char *found; /* only a success is kept: bash may be installed later */
    for (size_t i = 0; !found && i < sizeof shells / sizeof *shells; i++)
        if (access(shells[i], X_OK) == 0)
            found = shells[i];
    *is_bash = found != NULL;
    return found ? found : "/bin/sh";
}

void spawn_cwd(struct spawn *spawn, const char *asked) {
    const char *configured = defaults.cwd ? defaults.cwd : "";
    spawn->cwd_optional = !*asked && !*configured;
    spawn->cwd = *asked ? asked : *configured ? configured : spawn->who->home;
}
