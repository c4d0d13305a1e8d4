/* Persistent shells: one bash (or sh) per channel that runs script after script in the same process.
 *
 * The shell is interactive, so that an interrupt or a syntax error ends the script and not the shell, but it has no
 * terminal: it reads one-line commands from a pipe, and its own output (prompts, traces of our lines) goes to
 * /dev/null. A run is two lines. The first sources the script with the run's descriptors in place and ours closed; the
 * second reports $?, and is a line of its own because an interrupt discards the rest of a line.
 *
 *   5 script (a memory file)   6 stdin of the run (a memory file)   7 stdout   8 stderr   9 status
 *
 * The script cannot be read from 5, which is closed for it; but a shell keeps what it closes for one command at the
 * first free number from 10 on, close-on-exec. So the script is sourced from there, and commands see only 0, 1 and 2.
 * Sourcing, not eval, as bash then behaves as in a script file: no "exit" on stderr, `return` works. */
#define _GNU_SOURCE
#include "shell.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { HIGH = 16 };

static const char setup_line[] = "PS1=;PS2=;HISTFILE=;set +o history +H +m\n";
static const char setup_line_sh[] = "PS1=;PS2=;set +m\n";

void shell_tell(struct shell *shell, const char *text, size_t size) {
    /* A few lines at most are under way, so a pipe always has room for them. */
    (void)!write(shell->command_fd, text, size);
}

void shell_ask(struct shell *shell) {
    char line[64];
    int size =
        snprintf(line, sizeof line, "%s %u \"$?\">&9\n", shell->is_bash ? "builtin echo" : "echo", shell->serial);
    shell_tell(shell, line, (size_t)size);
}

uint64_t shell_cpu_ns(const struct shell *shell) {
    char path[40], text[512];
    unsigned long children_user, children_system;
    struct timespec own;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)shell->process.pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = 0;
    const char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %lu %lu", &children_user,
                      &children_system) != 2)
        return shell->cpu_ns;
    /* The kernel's clock of another process: its number is ~pid << 3 | 2. */
    if (clock_gettime((clockid_t)(~(unsigned)shell->process.pid << 3 | 2), &own) < 0)
        return shell->cpu_ns;
    uint64_t tick_ns = 1000000000ull / (uint64_t)sysconf(_SC_CLK_TCK);
    return (uint64_t)own.tv_sec * 1000000000ull + (uint64_t)own.tv_nsec + (children_user + children_system) * tick_ns;
}

void shell_kill(struct shell *shell) {
    tree_kill(shell->process.mark, shell->process.pid, 0);
}

static void status_line(struct shell *shell) {
    unsigned serial, code;
    shell->line[shell->line_size] = 0;
    shell->line_size = 0;
    bool answer = sscanf(shell->line, "%u %u", &serial, &code) == 2 && serial == shell->serial;
    if (!answer || shell->cancelled)
        return; /* the answer to a question that was asked again, or its last words */
    if (!shell->opened) {
        shell->opened = true;
        shell->cpu_ns = shell_cpu_ns(shell);
        send_frame(shell->channel.id, WIRE_OPENED, 0, NULL, 0, NULL, 0);
    } else if (shell->run) {
        run_status(shell->run, code & 0xff);
    }
}

static void status_ready(struct source *source, uint32_t events) {
    struct shell *shell = source->owner;
    char text[64];
    ssize_t got = read(source->fd, text, sizeof text);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) { /* its end is seen by reaping */
        source_watch(source, 0);
        return;
    }
    for (ssize_t i = 0; i < got; i++) {
        if (text[i] == '\n')
            status_line(shell);
        else if (shell->line_size < sizeof shell->line - 1)
            shell->line[shell->line_size++] = text[i];
    }
}

void shell_close_if_over(struct shell *shell) {
    if (shell->ended && !shell->run && !shell->leftovers.at_ns)
        end_ok(shell->channel.id, NULL, 0);
}

static void leftovers_fired(struct timer *timer) {
    struct shell *shell = timer->owner;
    uint64_t now = now_ns();
    if (tree_alive(shell->process.mark, shell->process.pid, 0) && now < shell->leftovers_until_ns)
        timer_set(timer, now + MILLISECOND_NS);
    shell_close_if_over(shell);
}

static void shell_ended(struct process *process, int status, const struct rusage *usage, bool alone) {
    struct shell *shell = (struct shell *)((char *)process - offsetof(struct shell, process));
    shell->ended = true;
    if (!alone && process_strays(process->mark, process->pid)) {
        shell_kill(shell);
        shell->leftovers_until_ns = now_ns() + 2000 * MILLISECOND_NS;
        timer_set(&shell->leftovers, now_ns() + MILLISECOND_NS / 4);
    }
    if (shell->run)
        run_shell_ended(shell->run);
    else
        shell_close_if_over(shell);
}

static void shell_frame(struct channel *channel, uint8_t type, uint8_t flags, const uint8_t *data, size_t size) {
    struct shell *shell = (struct shell *)channel;
    if (type == WIRE_SIGNAL) {
        run_signal(shell, data, size);
    } else if (type == WIRE_CANCEL) {
        shell->cancelled = true;
        if (shell->run)
            run_shell_cancelled(shell->run);
        if (!shell->ended)
            shell_kill(shell);
    } else {
        protocol_error("frame of a shell");
    }
}

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void shell_close(struct channel *channel) {
    struct shell *shell = (struct shell *)channel;
    timer_clear(&shell->leftovers);
    if (shell->run)
        run_abandon(shell->run);
    if (shell->process.pid && !shell->ended) {
        process_remove(&shell->process);
        shell_kill(shell);
    }
    source_close(&shell->status);
    close_fd(&shell->command_fd);
    close_fd(&shell->script_fd);
    close_fd(&shell->input_fd);
    close_fd(&shell->input_offset_fd);
    close_fd(&shell->out_fd);
    close_fd(&shell->err_fd);
    free(shell);
}

static const struct channel_ops shell_ops = {.frame = shell_frame, .close = shell_close};

/* ---- opening ---- */

static int move_high(int fd) {
    int moved = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
    if (fd >= 0)
        close(fd);
    return moved;
}

/* Our end in *own, without blocking; the shell's end returned. */
static int open_pipe(int *own, bool own_reads) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    *own = ends[own_reads ? 0 : 1];
    fcntl(*own, F_SETFL, O_NONBLOCK);
    return move_high(ends[own_reads ? 1 : 0]);
}

/* A file in memory, writable by us; the shell's end, which only reads, returned. */
static int open_memory(int *own, const char *name) {
    char path[40];
    *own = memfd_create(name, MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", *own);
    return *own < 0 ? -1 : move_high(open(path, O_RDONLY | O_CLOEXEC));
}

static pid_t start(struct shell *shell, struct spawn *spawn) {
    static char *const bash[] = {"bash", "--noprofile", "--norc", "--noediting", "-i", NULL};
    static char *const sh[] = {"sh", "-i", NULL};
    char *argv[6];
    int status_fd = -1, input = open_pipe(&shell->command_fd, false);
    int high[SPAWN_HIGH_COUNT] = {open_memory(&shell->script_fd, "script"), open_memory(&shell->input_fd, "stdin"),
                                  open_pipe(&shell->out_fd, true), open_pipe(&shell->err_fd, true),
                                  open_pipe(&status_fd, true)};
    shell->status = (struct source){.fd = status_fd, .ready = status_ready, .owner = shell};
    bool complete = input >= 0;
    for (int i = 0; i < SPAWN_HIGH_COUNT; i++)
        complete = complete && high[i] >= 0;
    const char *path = shell_path(&shell->is_bash);
    memcpy(argv, shell->is_bash ? bash : sh, shell->is_bash ? sizeof bash : sizeof sh);
    argv[0] = (char *)path;
    spawn->argv = argv;
    spawn->fds[0] = input;
    spawn->high = high;
    pid_t pid = -1;
    if (complete)
        pid = agent_spawn(spawn);
    else
        spawn->failed = SPAWN_CLONE, spawn->errnum = errno;
    shell->input_offset_fd = high[1]; /* shares its position with the shell's stdin */
    high[1] = -1;
    close_fd(&input);
    for (int i = 0; i < SPAWN_HIGH_COUNT; i++)
        close_fd(&high[i]);
    spawn->argv = NULL;
    spawn->high = NULL;
    return pid;
}

static void open_shell(uint32_t id, const char *cwd, const char *user, char **env) {
    static const char *const fields[] = {"", "cwd", "user", "terminal", "shell", "process"};
    struct identity who;
    struct spawn spawn = {.fds = {-1, -1, -1}, .terminal = -1, .who = &who, .mark = tree_next_mark()};
    if (!resolve_user(user, &who)) {
        end_error(id, ENOENT, "user", user && user[0] ? user : defaults.user);
        return;
    }
    struct shell *shell = calloc(1, sizeof *shell);
    spawn.env = env_build(&who, false, env);
    if (!shell || !spawn.env) {
        free(shell);
        free(spawn.env);
        end_error(id, ENOMEM, "memory", "");
        return;
    }
    shell->command_fd = shell->script_fd = shell->input_fd = shell->input_offset_fd = -1;
    shell->out_fd = shell->err_fd = -1;
    shell->process.ended = shell_ended;
    shell->process.mark = spawn.mark;
    shell->leftovers = (struct timer){.fire = leftovers_fired, .owner = shell};
    spawn_cwd(&spawn, cwd);
    channel_open(&shell->channel, id, &shell_ops);
    pid_t pid = start(shell, &spawn);
    free(spawn.env);
    if (pid < 0) {
        end_error(id, spawn.errnum, fields[spawn.failed], spawn.failed == SPAWN_CWD ? spawn.cwd : user);
        return;
    }
    shell->process.pid = pid;
    process_add(&shell->process);
    source_watch(&shell->status, EPOLLIN);
    shell_tell(shell, shell->is_bash ? setup_line : setup_line_sh, strlen(shell->is_bash ? setup_line : setup_line_sh));
    shell_ask(shell);
}

void request_shell(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    char *cwd = take_string(&reader, WIRE_MAX_REQUEST), *user = take_string(&reader, WIRE_MAX_REQUEST);
    char **env = take_list(&reader, WIRE_MAX_REQUEST);
    if (!reader_done(&reader))
        protocol_error("shell");
    open_shell(id, cwd, user, env);
    free(cwd);
    free(user);
    free(env);
}

void request_shell_run(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    struct channel *channel = channel_find(take_u32(&reader));
    request_run_in(channel && channel->ops == &shell_ops ? (struct shell *)channel : NULL, id, &reader);
}
