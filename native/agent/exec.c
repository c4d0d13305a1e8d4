/* Commands: request, start, deadline, end. The bytes are output.c's and input.c's, the processes tree.c's. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command.h"

static void kill_tree(struct command *command, uint8_t ending) {
    if (command->leader_ended)
        return;
    if (command->ending == WIRE_ENDED_EXIT)
        command->ending = ending;
    tree_kill(command->process.mark, command->process.pid, 0);
}

static void deadline_fired(struct timer *timer) {
    kill_tree(timer->owner, WIRE_ENDED_TIMEOUT);
}

static void output_over(struct capture *capture) {
    kill_tree((struct command *)capture->channel, WIRE_ENDED_OUTPUT_LIMIT);
}

static void report(struct command *command) {
    int status = command->process.status;
    bool signalled = WIFSIGNALED(status);
    struct exit_report report = {
        .ending = command->ending,
        .code = (uint32_t)(signalled ? WTERMSIG(status) : WEXITSTATUS(status)),
        .run_ns = command->run_ns,
        .cpu_ns = exit_cpu_ns(&command->process.usage),
        .max_rss_bytes = (uint64_t)command->process.usage.ru_maxrss * 1024,
        .omitted_bytes = capture_omitted(&command->capture),
        .stderr_omitted_bytes = capture_stderr_omitted(&command->capture),
        .oom_kills_before = command->oom_kills_before,
    };
    report.flags = report.omitted_bytes ? 1 : 0;
    if (report.ending == WIRE_ENDED_EXIT && signalled)
        report.ending = WIRE_ENDED_SIGNAL;
    exit_send(command->channel.id, &report);
}

/* Ends the channel once the leader is reaped, its leftovers are dead and its output is queued. */
static void finish_if_over(struct command *command) {
    if (!command->leader_ended || command->leftovers || !command->output_done)
        return;
    report(command);
    stream_flush(); /* the host wakes now; closing the descriptors can wait until after */
    channel_close(&command->channel);
}

static void output_drained(struct capture *capture) {
    struct command *command = (struct command *)capture->channel;
    command->output_done = true;
    finish_if_over(command);
}

static void leftovers_fired(struct timer *timer) {
    struct command *command = timer->owner;
    uint64_t now = now_ns();
    bool alive = tree_alive(command->process.mark, command->process.pid, 0);
    if (alive && now < command->leftovers_until_ns) {
        timer_set(timer, now + MILLISECOND_NS);
        return;
    }
    command->leftovers = false;
    finish_if_over(command);
}

static void kill_leftovers(struct command *command) {
    tree_kill(command->process.mark, command->process.pid, 0);
    command->leftovers = true;
    /* Only an uninterruptible process takes longer to die; it must not hold up the answer for ever. */
    command->leftovers_until_ns = now_ns() + 2000 * MILLISECOND_NS;
    timer_set(&command->leftovers_timer, now_ns() + MILLISECOND_NS / 4);
}

static void leader_ended(struct process *process, int status, const struct rusage *usage, bool alone) {
    struct command *command = process_command(process);
    command->run_ns = now_ns() - command->start_ns;
    command->leader_ended = true;
    timer_clear(&command->deadline);
    bool survivors = command->options & WIRE_OPT_BACKGROUND && command->ending == WIRE_ENDED_EXIT;
    if (!alone && survivors)
        process_leave_rest();
    else if (!alone && process_strays(process->mark, process->pid))
        kill_leftovers(command);
    /* Who cancels does not wait for the rest, and may grant no more credit for it. */
    command->output_done = capture_end(&command->capture) || command->ending == WIRE_ENDED_CANCELLED;
    finish_if_over(command);
}

static void command_signal(struct command *command, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint32_t number = take_u32(&reader);
    if (!reader_done(&reader))
        protocol_error("signal");
    if (!command->leader_ended && number > 0 && number < _NSIG)
        kill(-command->process.pid, (int)number);
}

static void command_resize(struct command *command, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    struct winsize window = {.ws_row = take_u16(&reader), .ws_col = take_u16(&reader)};
    if (!reader_done(&reader))
        protocol_error("resize");
    if (command->options & WIRE_OPT_TERMINAL && command->capture.out.source.fd >= 0)
        ioctl(command->capture.out.source.fd, TIOCSWINSZ, &window);
}

static void command_cancel(struct command *command) {
    kill_tree(command, WIRE_ENDED_CANCELLED);
    if (!command->leader_ended || command->output_done)
        return;
    command->ending = WIRE_ENDED_CANCELLED; /* it waits for credit that will not come */
    command->output_done = true;
    finish_if_over(command);
}

static void command_frame(struct channel *channel, uint8_t type, uint8_t flags, const uint8_t *data, size_t size) {
    struct command *command = (struct command *)channel;
    if (type == WIRE_SIGNAL) {
        command_signal(command, data, size);
    } else if (type == WIRE_RESIZE) {
        command_resize(command, data, size);
    } else if (type == WIRE_CANCEL) {
        command_cancel(command);
    } else if (type == WIRE_STDIN) {
        if (!command->input.streamed)
            return;
        if (!command->input.ended && (int64_t)size > command->input.credit)
            protocol_error("stdin credit");
        input_add(&command->input, data, size, flags & WIRE_FLAG_END);
    } else {
        protocol_error("frame of a command");
    }
}

static void command_pull(struct channel *channel) {
    capture_pull(&((struct command *)channel)->capture);
}

static void command_close(struct channel *channel) {
    struct command *command = (struct command *)channel;
    timer_clear(&command->deadline);
    timer_clear(&command->leftovers_timer);
    if (command->process.pid && !command->leader_ended) {
        process_remove(&command->process);
        tree_kill(command->process.mark, command->process.pid, 0);
    }
    capture_close(&command->capture, command->options & WIRE_OPT_BACKGROUND);
    input_close(&command->input);
    free(command);
}

static const struct channel_ops command_ops = {.frame = command_frame, .pull = command_pull, .close = command_close};

struct command *process_command(struct process *process) {
    return (struct command *)((char *)process - offsetof(struct command, process));
}

static void started(struct command *command, uint64_t deadline_ns) {
    uint32_t pid = (uint32_t)command->process.pid;
    process_add(&command->process);
    if (deadline_ns && deadline_ns < UINT64_MAX - command->start_ns)
        timer_set(&command->deadline, command->start_ns + deadline_ns);
    if (command->options & WIRE_OPT_WANT_STARTED) {
        uint8_t payload[4] = {(uint8_t)pid, (uint8_t)(pid >> 8), (uint8_t)(pid >> 16), (uint8_t)(pid >> 24)};
        send_frame(command->channel.id, WIRE_STARTED, 0, payload, sizeof payload, NULL, 0);
    }
    capture_watch(&command->capture);
}

/* The program could not be executed: that is the command's own ending, in the words of a shell. */
static void not_executed(struct command *command, const char *name, int errnum) {
    const char *reason = strerror(errnum);
    uint8_t type = command->options & (WIRE_OPT_MERGE | WIRE_OPT_TERMINAL) ? WIRE_STDOUT : WIRE_STDERR;
    char line[512];
    int size = snprintf(line, sizeof line, "%.400s: %s\n", name, reason);
    struct exit_report report = {.code = errnum == ENOENT ? 127 : 126,
                                 .run_ns = now_ns() - command->start_ns,
                                 .oom_kills_before = command->oom_kills_before};
    send_frame(command->channel.id, type, 0, line, (size_t)size, NULL, 0);
    exit_send(command->channel.id, &report);
    channel_close(&command->channel);
}

static void not_started(struct command *command, const struct spawn *spawn, const char *user) {
    static const char *const fields[] = {"", "cwd", "user", "terminal", "argv", "process"};
    const char *detail = spawn->failed == SPAWN_CWD ? spawn->cwd : spawn->failed == SPAWN_USER ? user : "";
    if (spawn->failed == SPAWN_EXEC)
        not_executed(command, spawn->argv[0], spawn->errnum);
    else
        end_error(command->channel.id, spawn->errnum, fields[spawn->failed], detail);
}

/* SHELL -c SCRIPT NAME ARGUMENT…, of what a request has from SCRIPT on. */
static char **shell_argv(char **given) {
    size_t count = 0;
    bool is_bash;
    while (given[count])
        count++;
    char **argv = calloc(count + 3, sizeof *argv);
    if (!argv)
        return NULL;
    argv[0] = (char *)shell_path(&is_bash);
    argv[1] = "-c";
    memcpy(argv + 2, given, count * sizeof *argv);
    return argv;
}

static void start(struct command *command, struct exec_request *request) {
    uint32_t id = command->channel.id;
    struct identity who;
    struct spawn spawn = {.fds = {-1, -1, -1}, .terminal = -1, .who = &who, .mark = tree_next_mark()};
    if (!resolve_user(request->user, &who)) {
        end_error(id, ENOENT, "user", request->user && request->user[0] ? request->user : defaults.user);
        return;
    }
    spawn_cwd(&spawn, request->cwd);
    char **script = NULL;
    if (command->options & WIRE_OPT_SCRIPT && !(script = shell_argv(request->argv))) {
        end_error(id, ENOMEM, "memory", "");
        return;
    }
    spawn.argv = script ? script : request->argv;
    spawn.env = env_build(&who, command->options & WIRE_OPT_TERMINAL, request->env);
    const char *failed = spawn.env ? plumbing_open(command, &spawn, request) : "memory";
    if (failed) {
        int errnum = errno;
        free(script);
        free(spawn.env);
        end_error(id, errnum, failed, "");
        return;
    }
    command->process.mark = spawn.mark;
    command->oom_kills_before = exit_oom_kills();
    command->start_ns = now_ns();
    pid_t pid = agent_spawn(&spawn);
    plumbing_started(&spawn);
    if (pid < 0) {
        not_started(command, &spawn, request->user);
    } else {
        command->process.pid = pid;
        started(command, request->deadline_ns);
        plumbing_feed(command, request);
    }
    free(script);
    free(spawn.env);
}

static void decode(struct reader *reader, struct exec_request *request) {
    request->options = take_u32(reader);
    request->rows = take_u16(reader);
    request->columns = take_u16(reader);
    request->deadline_ns = take_u64(reader);
    request->output_limit = take_u64(reader);
    request->window = take_u64(reader);
    request->cwd = take_string(reader, WIRE_MAX_REQUEST);
    request->user = take_string(reader, WIRE_MAX_REQUEST);
    request->argv = take_list(reader, WIRE_MAX_REQUEST);
    request->env = take_list(reader, WIRE_MAX_REQUEST);
    request->input = take_bytes(reader);
}

static void open_command(uint32_t id, struct exec_request *request) {
    if (!request->argv[0]) {
        end_error(id, EINVAL, "argv", "empty");
        return;
    }
    struct command *command = calloc(1, sizeof *command);
    if (!command) {
        end_error(id, ENOMEM, "memory", "");
        return;
    }
    command->options = request->options;
    command->channel.window = request->window;
    command->process.ended = leader_ended;
    command->deadline = (struct timer){.fire = deadline_fired, .owner = command};
    command->leftovers_timer = (struct timer){.fire = leftovers_fired, .owner = command};
    command->input.source.fd = -1;
    capture_open(&command->capture, &command->channel, request->options, request->output_limit);
    command->capture.over = output_over;
    command->capture.drained = output_drained;
    channel_open(&command->channel, id, &command_ops);
    start(command, request);
}

void request_exec(uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    struct exec_request request = {0};
    decode(&reader, &request);
    if (!reader_done(&reader))
        protocol_error("exec");
    open_command(id, &request);
    free(request.cwd);
    free(request.user);
    free(request.argv);
    free(request.env);
}
