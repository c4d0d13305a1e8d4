/* One script in a persistent shell: its deadline, its interrupts, its end. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shell.h"

enum { STRIKES = 100, AGAINS = 8, WAITS = 80 };

struct run {
    struct channel channel; /* first */
    struct shell *shell;
    struct capture capture;
    uint8_t ending;
    uint32_t code;
    bool over, interrupted, sent, answered;
    int waits; /* for the shell to begin, before it is interrupted */
    uint64_t start_ns, run_ns, oom_kills_before;
    struct timer deadline, strike, ask, again;
    uint64_t ask_step_ns;
    int strikes, agains;
};

/* An interrupt that meets a shell while it reads our line would make it run the rest of the line. Once the line runs,
 * the script's descriptor is kept at 10; a script may close that. */
static bool begun(const struct run *run) {
    char path[40];
    snprintf(path, sizeof path, "/proc/%d/fd/10", (int)run->shell->process.pid);
    return access(path, F_OK) == 0;
}

static void interrupt(struct shell *shell) {
    kill(-shell->process.pid, SIGINT);
    shell_ask(shell); /* a shell throws away what it has read ahead or is just reading: perhaps our question */
}

/* Ends the script but not the shell: kills all below it and interrupts it, again and again, as a loop may start more.
 * A shell that waits for a child heeds an interrupt only if the child dies of it too. So interrupts follow a kill in
 * short steps: they find the shell between two children, or the next child before it can have chosen to ignore them.
 * A shell that will not listen is killed in the end. */
static void strike(struct timer *timer) {
    static const uint64_t pause_ns[] = {MILLISECOND_NS / 4, MILLISECOND_NS / 2, MILLISECOND_NS, 20 * MILLISECOND_NS};
    struct run *run = timer->owner;
    struct shell *shell = run->shell;
    int step = run->strikes++ % 4;
    if (run->strikes > STRIKES) {
        shell_kill(shell);
        return;
    }
    interrupt(shell);
    if (step == 0)
        tree_kill(shell->process.mark, shell->process.pid, shell->process.pid);
    timer_set(timer, now_ns() + pause_ns[step]);
}

/* Shells other than bash read ahead, and after an error throw that away with our question: so it is put again. */
static void ask_again(struct timer *timer) {
    struct run *run = timer->owner;
    shell_ask(run->shell);
    run->ask_step_ns = run->ask_step_ns < 500 * MILLISECOND_NS ? 2 * run->ask_step_ns : run->ask_step_ns;
    timer_set(timer, now_ns() + run->ask_step_ns);
}

static void stop(struct run *run, uint8_t ending) {
    if (run->over || run->ending != WIRE_ENDED_EXIT)
        return;
    run->ending = ending;
    if (!run->shell->ended)
        strike(&run->strike);
}

static void deadline_fired(struct timer *timer) {
    stop(timer->owner, WIRE_ENDED_TIMEOUT);
}

static void output_over(struct capture *capture) {
    stop((struct run *)capture->channel, WIRE_ENDED_OUTPUT_LIMIT);
}

static void report(struct run *run) {
    struct shell *shell = run->shell;
    struct exit_report report = {
        .ending = run->ending, .code = run->code, .run_ns = run->run_ns, .oom_kills_before = run->oom_kills_before};
    uint64_t cpu_ns = shell->cpu_ns;
    if (shell->ended) {
        cpu_ns = exit_cpu_ns(&shell->process.usage);
        report.max_rss_bytes = (uint64_t)shell->process.usage.ru_maxrss * 1024;
    } else {
        cpu_ns = shell_cpu_ns(shell);
    }
    report.cpu_ns = cpu_ns > shell->cpu_ns ? cpu_ns - shell->cpu_ns : 0;
    shell->cpu_ns = cpu_ns;
    report.omitted_bytes = capture_omitted(&run->capture);
    report.stderr_omitted_bytes = capture_stderr_omitted(&run->capture);
    report.flags = (uint8_t)((report.omitted_bytes ? 1 : 0) | (shell->ended ? 2 : 0));
    exit_send(run->channel.id, &report);
}

static void finish(struct run *run) {
    report(run);
    stream_flush();
    channel_close(&run->channel);
}

static void output_drained(struct capture *capture) {
    finish((struct run *)capture->channel);
}

static void script_over(struct run *run) {
    run->over = true;
    run->run_ns = now_ns() - run->start_ns;
    timer_clear(&run->deadline);
    timer_clear(&run->strike);
    timer_clear(&run->ask);
    timer_clear(&run->again);
    if (capture_end(&run->capture) || run->ending == WIRE_ENDED_CANCELLED)
        finish(run);
}

/* A child that was started, or had not yet executed its program, when a shell was interrupted does not die of it. The
 * shell may wait for that child at once, or give up the script and wait for it in the next. So it is interrupted again,
 * and the script is over when it is gone. */
static void interrupt_again(struct timer *timer) {
    struct run *run = timer->owner;
    if (!run->sent && !run->answered) {
        if (!begun(run) && run->waits++ < WAITS) {
            timer_set(timer, now_ns() + MILLISECOND_NS / 4);
            return;
        }
        run->sent = true;
        interrupt(run->shell);
        timer_set(timer, now_ns() + MILLISECOND_NS);
        return;
    }
    bool left = tree_interrupt(run->shell->process.mark, run->shell->process.pid);
    if (run->answered && (!left || run->agains == AGAINS))
        script_over(run);
    else if (run->agains < AGAINS)
        timer_set(timer, now_ns() + (MILLISECOND_NS << run->agains++));
}

void run_status(struct run *run, uint32_t code) {
    if (run->over || run->answered)
        return;
    run->code = code;
    run->answered = true;
    if (run->ending == WIRE_ENDED_EXIT && run->interrupted) {
        interrupt_again(&run->again);
        return;
    }
    if (run->ending != WIRE_ENDED_EXIT) /* for the same reason */
        tree_kill(run->shell->process.mark, run->shell->process.pid, run->shell->process.pid);
    script_over(run);
}

void run_shell_ended(struct run *run) {
    if (run->over)
        return;
    int status = run->shell->process.status;
    bool signalled = WIFSIGNALED(status);
    run->code = (uint32_t)(signalled ? WTERMSIG(status) : WEXITSTATUS(status));
    if (signalled && run->ending == WIRE_ENDED_EXIT)
        run->ending = WIRE_ENDED_SIGNAL;
    script_over(run);
}

void run_cancel(struct run *run) {
    if (!run->over) {
        stop(run, WIRE_ENDED_CANCELLED);
        return;
    }
    run->ending = WIRE_ENDED_CANCELLED; /* it waits for credit only */
    finish(run);
}

void run_shell_cancelled(struct run *run) {
    if (run->over)
        run_cancel(run);
    else if (run->ending == WIRE_ENDED_EXIT)
        run->ending = WIRE_ENDED_CANCELLED;
}

void run_abandon(struct run *run) {
    end_error(run->channel.id, ECANCELED, "shell", "the shell is gone");
}

void run_signal(struct shell *shell, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint32_t number = take_u32(&reader);
    if (!reader_done(&reader))
        protocol_error("signal");
    if (shell->ended || !shell->run || shell->run->over || shell->run->answered)
        return;
    if (number == SIGINT) {
        shell->run->interrupted = true;
        shell->run->sent = false;
        shell->run->agains = 0;
        interrupt_again(&shell->run->again);
    } else if (number > 0 && number < _NSIG) {
        kill(-shell->process.pid, (int)number);
    }
}

static void run_frame(struct channel *channel, uint8_t type, uint8_t flags, const uint8_t *data, size_t size) {
    struct run *run = (struct run *)channel;
    if (type == WIRE_SIGNAL)
        run_signal(run->shell, data, size);
    else if (type == WIRE_CANCEL)
        run_cancel(run);
    else
        protocol_error("frame of a shell run");
}

static void run_pull(struct channel *channel) {
    capture_pull(&((struct run *)channel)->capture);
}

/* Gives a descriptor back to the shell; -1 if reading found its end. */
static void detach(struct output *output, int *fd) {
    source_watch(&output->source, 0);
    *fd = output->source.fd;
    output->source.fd = -1;
}

static void run_close(struct channel *channel) {
    struct run *run = (struct run *)channel;
    struct shell *shell = run->shell;
    timer_clear(&run->deadline);
    timer_clear(&run->strike);
    timer_clear(&run->ask);
    timer_clear(&run->again);
    detach(&run->capture.out, &shell->out_fd);
    detach(&run->capture.err, &shell->err_fd);
    capture_close(&run->capture, false);
    shell->run = NULL;
    free(run);
    shell_close_if_over(shell);
}

static const struct channel_ops run_ops = {.frame = run_frame, .pull = run_pull, .close = run_close};

/* Puts `data` into the memory file; `*known` is its size, so that an empty one stays untouched. */
static bool fill(int fd, struct slice data, size_t *known) {
    if (data.size < *known && ftruncate(fd, (off_t)data.size) < 0)
        return false;
    *known = data.size;
    for (size_t at = 0; at < data.size;) {
        ssize_t put = pwrite(fd, data.data + at, data.size - at, (off_t)at);
        if (put <= 0)
            return false;
        at += (size_t)put;
    }
    return true;
}

static void tell_run(struct shell *shell, uint32_t options) {
    char line[128];
    shell->serial++;
    int size =
        snprintf(line, sizeof line, "%s. /proc/self/fd/10 5<&- <&6 >&7 2>&%c 6<&- 7>&- 8>&- 9>&-\n%s %u \"$?\">&9\n",
                 shell->is_bash ? "builtin " : "", options & WIRE_OPT_MERGE ? '7' : '8',
                 shell->is_bash ? "builtin echo" : "echo", shell->serial);
    shell_tell(shell, line, (size_t)size);
}

static void start(struct shell *shell, struct run *run, uint32_t id, uint32_t options, uint64_t deadline_ns) {
    run->shell = shell;
    shell->run = run;
    run->deadline = (struct timer){.fire = deadline_fired, .owner = run};
    run->strike = (struct timer){.fire = strike, .owner = run};
    run->ask = (struct timer){.fire = ask_again, .owner = run};
    run->again = (struct timer){.fire = interrupt_again, .owner = run};
    run->ask_step_ns = 4 * MILLISECOND_NS;
    run->capture.over = output_over;
    run->capture.drained = output_drained;
    capture_attach(&run->capture.out, shell->out_fd, false);
    capture_attach(&run->capture.err, shell->err_fd, false);
    channel_open(&run->channel, id, &run_ops);
    run->oom_kills_before = exit_oom_kills();
    run->start_ns = now_ns();
    if (deadline_ns && deadline_ns < UINT64_MAX - run->start_ns)
        timer_set(&run->deadline, run->start_ns + deadline_ns);
    tell_run(shell, options);
    if (!shell->is_bash)
        timer_set(&run->ask, run->start_ns + run->ask_step_ns);
    capture_watch(&run->capture);
}

static const char *refusal(const struct shell *shell, uint32_t options, struct slice script, int *errnum) {
    *errnum = !shell || shell->ended ? ENOENT : shell->run || !shell->opened ? EBUSY : EINVAL;
    if (*errnum != EINVAL)
        return "shell";
    if (options & (WIRE_OPT_TERMINAL | WIRE_OPT_STDIN_OPEN))
        return "options";
    return memchr(script.data, 0, script.size) ? "script" : NULL;
}

void request_run_in(struct shell *shell, uint32_t id, struct reader *reader) {
    uint32_t options = take_u32(reader);
    uint64_t deadline_ns = take_u64(reader), limit = take_u64(reader), window = take_u64(reader);
    struct slice script = take_bytes(reader), input = take_bytes(reader);
    int errnum;
    if (!reader_done(reader))
        protocol_error("shell run");
    const char *refused = refusal(shell, options, script, &errnum);
    if (refused) {
        end_error(id, errnum, refused, "");
        return;
    }
    bool input_changed = input.size || shell->input_size;
    if (!fill(shell->script_fd, script, &shell->script_size) || !fill(shell->input_fd, input, &shell->input_size) ||
        (input_changed && lseek(shell->input_offset_fd, 0, SEEK_SET) < 0)) {
        end_error(id, errno, "script", "");
        return;
    }
    struct run *run = calloc(1, sizeof *run);
    if (!run) {
        end_error(id, ENOMEM, "memory", "");
        return;
    }
    run->channel.window = window;
    capture_open(&run->capture, &run->channel, options, limit);
    start(shell, run, id, options, deadline_ns);
}
