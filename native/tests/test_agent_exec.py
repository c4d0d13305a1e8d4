"""Commands: start, bytes, cap, deadline, tree, end."""

from __future__ import annotations

import errno
import os
import signal
import struct
from pathlib import Path

import pytest
from frames import Ended, Ending, Option, Type
from peer import Peer, is_alive, refusal, wait_gone

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root: sudo make test")
MS = 1_000_000


def pids(ended: Ended) -> list[int]:
    return [int(word) for word in ended.stdout.split()]


# ---- starting ----


def test_hello_names_protocol_and_limits(peer: Peer) -> None:
    magic, version, zero, largest, features = struct.unpack("<IHHIQ", peer.hello.payload)
    assert (magic, version, zero, largest, features) == (0x41465344, 1, 0, 1 << 20, 0)


def test_an_agent_that_is_pid_1_says_so(first_process: Peer) -> None:
    assert first_process.hello.payload[12] & 2


def test_a_program_is_found_in_path_and_its_exit_code_told(peer: Peer) -> None:
    assert [peer.run([name]).code for name in (b"true", b"false")] == [0, 1]


def test_a_script_is_run_by_a_shell(peer: Peer) -> None:
    ended = peer.run(b'x=("a b"); echo "${x[0]}"; echo no >&2; exit 3')
    assert (ended.ending, ended.code, ended.stdout, ended.stderr) == (Ending.EXIT, 3, b"a b\n", b"no\n")


def test_bytes_are_exact(peer: Peer) -> None:
    data = bytes(range(256)) * 300 + b"\x1b[31m\xff\xfe\x00"
    assert peer.run([b"cat"], stdin=data).stdout == data


def test_stderr_is_merged_in_order_when_asked(peer: Peer) -> None:
    ended = peer.run(b"echo 1; echo 2 >&2; echo 3", options=Option.MERGE)
    assert (ended.stdout, ended.stderr) == (b"1\n2\n3\n", b"")


def test_an_empty_stdin_is_at_its_end(peer: Peer) -> None:
    assert peer.run([b"cat"]).code == 0


def test_the_answer_of_a_short_command_arrives_whole(peer: Peer) -> None:
    channel = peer.begin(b"echo out; echo err >&2")
    kinds = [frame.type for frame in peer.finish(channel).frames]
    assert kinds == [Type.STDOUT, Type.STDERR, Type.EXIT]


@pytest.mark.parametrize(
    ("argv", "code", "reason"),
    [
        (b"no-such-program", 127, b"No such file"),
        (b"/no/such/program", 127, b"No such file"),
        (b"/etc/passwd", 126, b"Permission denied"),
        (b"/", 126, b"Permission denied"),
        (b"", 127, b"No such file"),
        (b"x" * 5000, 126, b"name too long"),
    ],
)
def test_a_program_that_cannot_be_executed_ends_like_in_a_shell(
    peer: Peer, argv: bytes, code: int, reason: bytes
) -> None:
    ended = peer.run([argv])
    assert (ended.ending, ended.code) == (Ending.EXIT, code)
    assert reason in ended.stderr
    assert ended.stderr.count(b"\n") == 1


def test_arguments_beyond_the_kernel_s_limit_end_with_126(peer: Peer) -> None:
    ended = peer.run([b"true", b"x" * (200 << 10)])
    assert (ended.code, b"too long" in ended.stderr) == (126, True)


def test_a_file_without_an_interpreter_line_is_not_executable(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("echo hello\n")
    (tmp_path / "text").chmod(0o755)
    assert peer.run([bytes(tmp_path / "text")]).code == 126


def test_a_missing_cwd_is_an_error_that_names_it(peer: Peer) -> None:
    refused = refusal(peer.run, [b"true"], cwd=b"/no/such/dir")
    assert (refused.errno, refused.what, refused.detail) == (errno.ENOENT, "cwd", b"/no/such/dir")


@pytest.mark.parametrize("user", [b"no-such-user", b"root:no-such-group", b"-1", b"4294967295", b"u" * 500])
def test_an_unknown_user_is_an_error_that_names_it(peer: Peer, user: bytes) -> None:
    refused = refusal(peer.run, [b"true"], user=user)
    assert (refused.what, refused.detail) == ("user", user)


@needs_root
@pytest.mark.parametrize(
    ("user", "ids"),
    [(b"nobody", b"65534 65534"), (b"1234", b"1234 1234"), (b"1234:77", b"1234 77"), (b"nobody:root", b"65534 0")],
)
def test_a_command_runs_as_the_user_asked_for(peer: Peer, user: bytes, ids: bytes) -> None:
    assert peer.run(b"echo $(id -u) $(id -g)", user=user, cwd=b"/").stdout == ids + b"\n"


def test_an_empty_argv_is_refused(peer: Peer) -> None:
    assert refusal(peer.run, []).what == "argv"


def test_env_of_request_wins_over_config_and_defaults(peer: Peer) -> None:
    peer.config(env=[b"A=config", b"B=config", b"LANG=xx"], cwd=b"/usr")
    said = peer.run([b"env"], env=[b"B=request", b"C="]).stdout.split(b"\n")
    assert {b"A=config", b"B=request", b"C=", b"LANG=xx"} <= set(said)
    assert [line.split(b"=")[0] for line in said if line.startswith((b"PATH", b"HOME", b"USER"))]
    assert peer.run([b"pwd"]).stdout == b"/usr\n"


def test_path_of_the_command_s_own_environment_is_searched(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "mine").chmod(0o755)
    path = b"PATH=/no/such:/etc/passwd:" + bytes(tmp_path)
    assert peer.run([b"mine"], env=[path]).stdout == b"mine\n"


def test_a_command_starts_clean(peer: Peer) -> None:
    script = b"umask; ls /proc/self/fd | wc -w; grep -E '^Sig(Blk|Ign)' /proc/self/status; ps -o sid= -p $$; echo $$"
    lines = peer.run(script).stdout.split(b"\n")
    # ls itself has one more descriptor open: the directory it lists.
    assert lines[:2] == [b"0022", b"4"]
    assert [line.split()[1] for line in lines[2:4]] == [b"0" * 16] * 2
    assert lines[4].strip() == lines[5]


def test_started_tells_the_pid(peer: Peer) -> None:
    ended = peer.run(b"echo $$", options=Option.WANT_STARTED)
    assert ended.frames[0].type == Type.STARTED
    assert struct.unpack("<I", ended.frames[0].payload)[0] == int(ended.stdout)


def test_resources_are_accounted(peer: Peer) -> None:
    ended = peer.run(b"i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
    assert min(ended.cpu_ns, ended.run_ns) > 0
    assert ended.max_rss_bytes > 1 << 19


def test_hundreds_of_commands_run_at_once(peer: Peer) -> None:
    channels = [peer.begin(b"read x; echo %d" % i, options=Option.STDIN_OPEN) for i in range(200)]
    for channel in channels:
        peer.send(channel, Type.STDIN, b"go\n", 1)
    assert [peer.finish(channel).stdout for channel in channels] == [b"%d\n" % i for i in range(200)]


# ---- output ----


@pytest.mark.parametrize("size", [65536, 1 << 20, 20_000_003])
def test_large_output_arrives_whole(peer: Peer, size: int) -> None:
    ended = peer.run(b"head -c %d /dev/zero | tr '\\0' x; echo end >&2" % size)
    assert (len(ended.stdout), set(ended.stdout), ended.stderr) == (size, {ord("x")}, b"end\n")


def test_of_output_over_the_limit_head_and_tail_are_kept(peer: Peer) -> None:
    whole = b"".join(b"%d\n" % i for i in range(100_000))
    ended = peer.run([b"seq", b"0", b"99999"], limit=1001)
    gaps = [frame for frame in ended.frames if frame.type == Type.STDOUT and frame.flags & 1]
    assert ended.stdout == whole[:501] + whole[-500:]
    assert (ended.truncated, ended.omitted, len(gaps)) == (True, len(whole) - 1001, 1)


def test_the_tail_is_at_most_256_kib(peer: Peer) -> None:
    ended = peer.run(b"head -c 2000000 /dev/zero; head -c 2000000 /dev/zero | tr '\\0' x", limit=1_000_000)
    tail = 256 << 10
    assert ended.stdout == b"\0" * (1_000_000 - tail) + b"x" * tail
    assert ended.omitted == 3_000_000


@pytest.mark.parametrize("size", [999, 1000])
def test_output_up_to_the_limit_is_not_truncated(peer: Peer, size: int) -> None:
    ended = peer.run([b"head", b"-c", b"%d" % size, b"/dev/zero"], limit=1000)
    assert (len(ended.stdout), ended.truncated, ended.omitted) == (size, False, 0)
    assert not any(frame.flags for frame in ended.frames)


def test_a_limit_of_zero_leaves_everything_out(peer: Peer) -> None:
    ended = peer.run(b"echo hello; echo you >&2", limit=0)
    assert (ended.stdout, ended.stderr, ended.truncated, ended.omitted) == (b"", b"", True, 10)


def test_output_over_a_fatal_limit_ends_the_command(peer: Peer) -> None:
    ended = peer.run(b"yes", limit=100_000, options=Option.OUTPUT_FATAL)
    assert (ended.ending, len(ended.stdout), ended.truncated) == (Ending.OUTPUT_LIMIT, 100_000, True)


def test_output_streams_as_it_comes_when_asked(peer: Peer) -> None:
    channel = peer.begin(b"echo first; read x; echo second", options=Option.STREAM | Option.STDIN_OPEN)
    assert peer.wait_output(channel, b"first\n") == b"first\n"
    peer.send(channel, Type.STDIN, b"\n")
    assert peer.finish(channel).stdout == b"first\nsecond\n"


def test_a_command_without_credit_waits_and_others_go_on(peer: Peer) -> None:
    blocked = peer.begin(b"yes | head -c 3000000", window=1000)
    assert len(peer.wait_output(blocked, b"y\n" * 500)) == 1000
    assert peer.run([b"echo", b"free"]).stdout == b"free\n"
    assert len(peer.kept(blocked)) == 1000
    peer.grant(blocked, 500)
    assert len(peer.wait_output(blocked, b"y\n" * 750)) == 1500
    peer.grant(blocked, 1 << 40)
    assert len(peer.finish(blocked).stdout) == 3_000_000


def test_an_ended_command_waits_for_credit_for_its_tail(peer: Peer) -> None:
    channel = peer.begin([b"seq", b"0", b"999"], limit=1000, window=600)
    peer.wait_output(channel, b"0\n")
    peer.run([b"true"])
    peer.grant(channel, 10_000)
    ended = peer.finish(channel)
    assert (len(ended.stdout), ended.stdout[-8:]) == (1000, b"998\n999\n")


def test_a_command_that_waits_for_credit_can_be_cancelled(peer: Peer) -> None:
    channel = peer.begin([b"echo", b"hello"], window=1)
    peer.wait_output(channel, b"h")
    peer.send(channel, Type.CANCEL)
    assert peer.finish(channel).ending == Ending.CANCELLED


def test_a_host_that_does_not_read_stops_the_writer_and_not_the_agent(peer: Peer) -> None:
    channels = [peer.begin([b"head", b"-c", b"5000000", b"/dev/zero"]) for _ in range(8)]
    assert [len(peer.finish(channel).stdout) for channel in channels] == [5_000_000] * 8


# ---- stdin ----


def test_stdin_streams_and_credit_comes_back(peer: Peer) -> None:
    channel = peer.begin([b"wc", b"-c"], options=Option.STDIN_OPEN)
    credit, sent, total = 262_144, 0, 2_000_000
    while sent < total:
        if not credit:
            credit += struct.unpack("<Q", peer.receive(channel, Type.WINDOW).payload)[0]
        size = min(credit, 100_000, total - sent)
        peer.send(channel, Type.STDIN, b"x" * size)
        sent, credit = sent + size, credit - size
    peer.send(channel, Type.STDIN, b"", 1)
    assert peer.finish(channel).stdout == b"2000000\n"


def test_a_large_stdin_in_the_request_is_taken(peer: Peer) -> None:
    data = os.urandom(1_000_000)
    assert peer.run([b"cat"], stdin=data).stdout == data


def test_a_command_that_does_not_read_its_stdin_harms_nobody(peer: Peer) -> None:
    assert peer.run([b"true"], stdin=b"x" * 500_000).code == 0
    channel = peer.begin(b"exec <&-; echo closed; sleep 1000", options=Option.STDIN_OPEN | Option.STREAM)
    peer.wait_output(channel, b"closed")
    peer.send(channel, Type.STDIN, b"x" * 200_000)
    assert struct.unpack("<Q", peer.receive(channel, Type.WINDOW).payload)[0] == 200_000
    peer.send(channel, Type.CANCEL)
    assert peer.finish(channel).ending == Ending.CANCELLED


def test_a_command_gets_the_default_sigpipe(peer: Peer) -> None:
    ended = peer.run(b"yes | head -1; echo ${PIPESTATUS[0]}")
    assert ended.stdout == b"y\n141\n"


# ---- terminal ----


def test_a_terminal_has_a_size_and_can_be_resized(peer: Peer) -> None:
    script = b"stty size; tty; echo $TERM; while read x && [ $x != end ]; do stty size; done"
    channel = peer.begin(script, options=Option.TERMINAL | Option.STDIN_OPEN | Option.STREAM, rows=30, columns=100)
    peer.wait_output(channel, b"xterm-256color")
    peer.send(channel, Type.RESIZE, struct.pack("<HH", 50, 120))
    peer.send(channel, Type.STDIN, b"again\n")
    peer.wait_output(channel, b"50 120")
    peer.send(channel, Type.STDIN, b"end\n")
    ended = peer.finish(channel)
    assert ended.stdout.startswith(b"30 100\r\n/dev/")


def test_a_terminal_signals_end_of_input(peer: Peer) -> None:
    ended = peer.run([b"cat"], options=Option.TERMINAL, stdin=b"no newline")
    assert (ended.code, ended.stdout.count(b"no newline")) == (0, 2)


def test_a_command_that_lets_go_of_its_terminal_is_not_hung_up_on(peer: Peer) -> None:
    """Every program of the coreutils does at its end; some open it again."""
    script = b"exec <&- >&- 2>&-; sleep 0.2; exec >/dev/tty; yes | head -50000; exec >&-; sleep 0.2; exit 7"
    ended = peer.run(script, options=Option.TERMINAL)
    assert (ended.ending, ended.code, ended.stdout.count(b"y\r\n")) == (Ending.EXIT, 7, 50_000)


def test_an_agent_sleeps_while_nobody_holds_the_terminal(peer: Peer) -> None:
    stat = Path(f"/proc/{peer.process.pid}/stat")
    before = stat.read_text().split()[13:15]
    assert peer.run(b"exec <&- >&- 2>&-; sleep 1; exit 7", options=Option.TERMINAL).code == 7
    used = sum(map(int, stat.read_text().split()[13:15])) - sum(map(int, before))
    assert used < os.sysconf("SC_CLK_TCK") / 2


def test_an_interrupt_typed_at_a_terminal_reaches_the_command(peer: Peer) -> None:
    channel = peer.begin(b"echo on; exec sleep 1000", options=Option.TERMINAL | Option.STDIN_OPEN | Option.STREAM)
    peer.wait_output(channel, b"on")
    peer.send(channel, Type.STDIN, b"\x03")
    ended = peer.finish(channel)
    assert (ended.ending, ended.code) == (Ending.SIGNAL, signal.SIGINT)


# ---- ends ----


def test_a_signal_reaches_the_process_group(peer: Peer) -> None:
    channel = peer.begin(b"trap 'echo got; exit 7' USR1; echo on; sleep 1000 & wait", options=Option.STREAM)
    peer.wait_output(channel, b"on")
    peer.send(channel, Type.SIGNAL, struct.pack("<I", signal.SIGUSR1))
    ended = peer.finish(channel)
    assert (ended.code, ended.stdout) == (7, b"on\ngot\n")


def test_death_by_a_signal_is_told_from_exit_137(peer: Peer) -> None:
    killed, exited = peer.run(b"kill -9 $$"), peer.run(b"exit 137")
    assert (killed.ending, killed.code, exited.ending, exited.code) == (Ending.SIGNAL, 9, Ending.EXIT, 137)


HIDERS = (
    b"sleep 1000 & echo $!; setsid sleep 1000 & echo $!;"
    b" (setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000 & echo $!; sleep 1000 & echo $!; wait' &);"
)


def test_at_the_deadline_the_whole_tree_dies(peer: Peer) -> None:
    channel = peer.begin(HIDERS + b" sleep 1000", deadline_ns=300 * MS)
    ended = peer.finish(channel)
    assert ended.ending == Ending.TIMEOUT
    assert ended.run_ns >= 300 * MS
    assert [pid for pid in pids(ended) if is_alive(pid)] == []


def test_a_command_that_exits_137_at_its_deadline_timed_out(peer: Peer) -> None:
    ended = peer.run(b"sleep 1000; exit 137", deadline_ns=50 * MS)
    assert ended.ending == Ending.TIMEOUT


def test_a_fork_bomb_dies_at_its_deadline(peer: Peer) -> None:
    bomb = b"f() { sleep 1000 & [ $1 -gt 0 ] && { f $(($1-1)) & f $(($1-1)) & }; wait; }; f 6"
    assert peer.run(bomb, deadline_ns=200 * MS).ending == Ending.TIMEOUT
    peer.ping()


def test_cancel_kills_the_tree(peer: Peer) -> None:
    channel = peer.begin(HIDERS + b" echo 1; sleep 1000", options=Option.STREAM)
    peer.wait_output(channel, b"\n1\n")
    peer.send(channel, Type.CANCEL)
    ended = peer.finish(channel)
    assert ended.ending == Ending.CANCELLED
    assert [pid for pid in pids(ended)[:2] if is_alive(pid)] == []


def test_what_a_command_leaves_running_is_killed_at_its_end(peer: Peer) -> None:
    ended = peer.run(HIDERS + b" true")
    assert (ended.ending, ended.code) == (Ending.EXIT, 0)
    assert [pid for pid in pids(ended) if is_alive(pid)] == []


def test_what_a_command_leaves_running_is_killed_while_others_run(peer: Peer) -> None:
    other = peer.begin(
        b"sleep 1000 & setsid sleep 1000 & echo $!; read x; kill -0 $! && echo alive", options=Option.STDIN_OPEN
    )
    survivor = peer.run(b"setsid sleep 1000 & echo $!", options=Option.BACKGROUND)
    ended = peer.run(HIDERS + b" true")
    assert [pid for pid in pids(ended) if is_alive(pid)] == []
    assert is_alive(pids(survivor)[0])
    peer.send(other, Type.STDIN, b"\n", 1)
    assert peer.finish(other).stdout.endswith(b"alive\n")


LOWERS_ITS_MARK = b"""
import os, resource, sys
ready, told = os.pipe()
pid = os.fork()
if pid == 0:
    resource.setrlimit(resource.RLIMIT_RTTIME, (9, 9))
    os.setsid()
    os.write(told, b"x")
    os.execvp("sleep", ["sleep", "1000"])
os.read(ready, 1)
print(pid)
"""


def test_a_process_that_lowered_its_mark_is_still_found(peer: Peer) -> None:
    ended = peer.run([b"python3", b"-c", LOWERS_ITS_MARK])
    assert [is_alive(pid) for pid in pids(ended)] == [False]


def test_background_processes_outlive_their_command_when_asked(peer: Peer) -> None:
    ended = peer.run(HIDERS + b" true", options=Option.BACKGROUND)
    survivors = pids(ended)
    assert len(survivors) >= 2
    assert all(map(is_alive, survivors))
    assert peer.run([b"true"]).code == 0
    assert all(map(is_alive, survivors))
    peer.stream.shutdown(2)
    for pid in survivors:
        wait_gone(pid)


def test_a_background_process_may_go_on_writing_to_its_output(peer: Peer, tmp_path: Path) -> None:
    begin, done = tmp_path / "begin", tmp_path / "done"
    os.mkfifo(begin)
    os.mkfifo(done)
    script = b"(read x <%s; head -c 300000 /dev/zero && echo written >%s) & echo $!" % (bytes(begin), bytes(done))
    assert peer.run(script, options=Option.BACKGROUND).code == 0
    begin.write_bytes(b"go\n")
    assert done.read_bytes() == b"written\n"


def test_a_survivor_that_holds_the_pipe_delays_nothing(peer: Peer) -> None:
    ended = peer.run(b"(while :; do echo noise; done) & echo done", options=Option.BACKGROUND)
    assert (ended.ending, ended.code) == (Ending.EXIT, 0)


def test_orphans_are_reaped(peer: Peer) -> None:
    peer.run(b"for i in 1 2 3 4 5; do (sh -c 'exit 0' &); done")
    children = Path(f"/proc/{peer.process.pid}/task/{peer.process.pid}/children")
    while children.read_text():
        peer.ping()


def test_pid_1_reaps_and_kills_what_is_left(first_process: Peer) -> None:
    ended = first_process.run(HIDERS + b" true")
    assert (ended.ending, ended.code) == (Ending.EXIT, 0)
    assert first_process.run(b"ps -e -o stat=,comm= | grep -c -e sleep -e Z").stdout == b"0\n"


def test_an_agent_without_channels_ends_after_its_idle_time(peer: Peer) -> None:
    peer.config(idle_ns=100 * MS)
    assert peer.run([b"sleep", b"0.3"]).code == 0
    with pytest.raises(EOFError):
        peer.receive(0, Type.EXIT)
    assert peer.process.wait(10) == 0


def test_the_end_of_the_stream_kills_everything(peer: Peer) -> None:
    survivors = pids(peer.run(HIDERS + b" true", options=Option.BACKGROUND))
    running = peer.begin(HIDERS + b" echo 1; sleep 1000", options=Option.STREAM)
    survivors += [int(word) for word in peer.wait_output(running, b"\n1\n").split() if int(word) > 1]
    assert peer.hang_up() == 0
    for pid in survivors:
        wait_gone(pid)


def test_the_agent_s_memory_and_descriptors_are_out_of_reach(program: Path, peer: Peer) -> None:
    if "sanitize" in str(program):
        pytest.skip("the sanitized build stays dumpable for its reports: run the plain one")
    status = Path(f"/proc/{peer.process.pid}/fd").stat()
    assert status.st_uid == 0
    if os.geteuid() == 0:
        pid = b"%d" % peer.process.pid
        assert peer.run(b"ls /proc/%s/fd; cat /proc/%s/environ" % (pid, pid), user=b"nobody", cwd=b"/").stdout == b""
