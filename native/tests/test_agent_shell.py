"""Persistent shells: one process, many scripts."""

from __future__ import annotations

import errno
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from frames import Ending, Option, Type
from peer import Peer, is_alive, refusal, wait_gone

MS = 1_000_000


def interrupt(peer: Peer, channel: int) -> None:
    peer.send(channel, Type.SIGNAL, struct.pack("<I", signal.SIGINT))


def test_directory_environment_and_functions_survive_between_runs(peer: Peer) -> None:
    shell = peer.shell()
    assert peer.run_in(shell, b"cd /usr; export A=5; x=3; f() { echo f $1; }").code == 0
    assert peer.run_in(shell, b"pwd; env | grep ^A=; f $x").stdout == b"/usr\nA=5\nf 3\n"


def test_a_shell_starts_where_and_as_asked(peer: Peer) -> None:
    shell = peer.shell(cwd=b"/etc", env=[b"GREETING=hello"])
    assert peer.run_in(shell, b"pwd; echo $GREETING").stdout == b"/etc\nhello\n"


def test_exit_codes_and_both_outputs_are_told(peer: Peer) -> None:
    shell = peer.shell()
    ended = peer.run_in(shell, b"echo out; echo err >&2; (exit 42)")
    assert (ended.ending, ended.code, ended.stdout, ended.stderr) == (Ending.EXIT, 42, b"out\n", b"err\n")
    assert peer.run_in(shell, b"echo 1; echo 2 >&2", options=Option.MERGE).stdout == b"1\n2\n"


def test_exit_ends_the_run_and_then_the_shell(peer: Peer) -> None:
    shell = peer.shell()
    ended = peer.run_in(shell, b"echo bye; exit 5")
    assert (ended.code, ended.stdout, ended.stderr, ended.shell_ended) == (5, b"bye\n", b"", True)
    assert peer.result(shell) == (b"", b"")
    assert refusal(peer.run_in, shell, b"true").errno == errno.ENOENT


@pytest.mark.parametrize("script", [b"set -e; false; echo no", b"exec sh -c 'exit 1'"])
def test_a_script_that_ends_its_shell_is_told(peer: Peer, script: bytes) -> None:
    shell = peer.shell()
    ended = peer.run_in(shell, script)
    assert (ended.code, ended.shell_ended) == (1, True)
    assert peer.result(shell) == (b"", b"")


@pytest.mark.parametrize(
    "script", [b"if ) then", b"echo 'open", b"(((", b"}", b"case x in", b"cat <<EOF\nnever closed"]
)
def test_a_syntax_error_leaves_the_shell_alive(peer: Peer, script: bytes) -> None:
    shell = peer.shell()
    peer.run_in(shell, b"x=kept")
    ended = peer.run_in(shell, script)
    assert (ended.shell_ended, ended.stderr != b"") == (False, True)
    assert peer.run_in(shell, b"echo $x").stdout == b"kept\n"


def test_stdin_is_what_was_given_or_empty_and_never_our_commands(peer: Peer) -> None:
    shell = peer.shell()
    assert peer.run_in(shell, b"cat; read x; echo end", stdin=b"a\0b\n").stdout == b"a\0b\nend\n"
    assert peer.run_in(shell, b"read x; echo [$x]", stdin=b"line\nrest\n").stdout == b"[line]\n"
    assert peer.run_in(shell, b"cat").stdout == b""


def test_commands_of_a_shell_see_three_descriptors(peer: Peer) -> None:
    shell = peer.shell()
    assert peer.run_in(shell, b"echo /proc/self/fd/*; ls /proc/self/fd").stdout.splitlines()[-4:] == [
        b"0",
        b"1",
        b"2",
        b"3",
    ]


def test_redirections_of_one_run_do_not_reach_the_next(peer: Peer, tmp_path: Path) -> None:
    shell = peer.shell()
    peer.run_in(shell, b"exec >%s 2>&1; echo hidden" % bytes(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"hidden\n"
    assert peer.run_in(shell, b"echo shown").stdout == b"shown\n"


@pytest.mark.parametrize(
    "script",
    [
        b"set -x",
        b"set -v",
        b"set -u",
        b"echo() { :; }",
        b"alias echo=false",
        b"PS1='$(echo prompt)'",
        b"IFS=0123456789",
    ],
)
def test_settings_a_script_makes_do_not_break_the_conversation(peer: Peer, script: bytes) -> None:
    shell = peer.shell()
    assert peer.run_in(shell, script).code == 0
    ended = peer.run_in(shell, b"printf done; (exit 3)")
    assert (ended.code, ended.stdout) == (3, b"done")


def test_an_interrupt_ends_a_stuck_child_and_not_the_shell(peer: Peer) -> None:
    shell = peer.shell()
    run = peer.begin_in(shell, b"x=kept; sh -c 'echo on; exec sleep 1000'; echo not reached", options=Option.STREAM)
    peer.wait_output(run, b"on")
    interrupt(peer, run)
    ended = peer.finish(run)
    assert (ended.code, ended.stdout, ended.shell_ended) == (130, b"on\n", False)
    assert peer.run_in(shell, b"echo $x").stdout == b"kept\n"


def test_an_interrupt_ends_a_busy_loop_of_the_shell_itself(peer: Peer) -> None:
    shell = peer.shell()
    run = peer.begin_in(shell, b"echo on; while :; do :; done", options=Option.STREAM)
    peer.wait_output(run, b"on")
    interrupt(peer, shell)
    ended = peer.finish(run)
    assert (ended.code, ended.shell_ended) == (130, False)
    assert peer.run_in(shell, b"echo alive").stdout == b"alive\n"


@pytest.mark.parametrize(
    ("kind", "payload"), [(Type.SIGNAL, struct.pack("<I", signal.SIGINT)), (Type.CANCEL, b"")], ids=["signal", "cancel"]
)
def test_a_child_that_starts_while_its_shell_is_interrupted_holds_up_nothing(
    peer: Peer, kind: int, payload: bytes
) -> None:
    shell = peer.shell()
    for _ in range(30):
        run = peer.begin_in(shell, b"echo on; sleep 1000", options=Option.STREAM)
        peer.wait_output(run, b"on")
        peer.send(run, kind, payload)
        assert peer.finish(run).code in (130, 137)
        assert peer.run_in(shell, b"echo alive").stdout == b"alive\n"


def test_jobs_in_the_background_survive_an_interrupt(peer: Peer) -> None:
    shell = peer.shell()
    run = peer.begin_in(shell, b"sh -c 'echo $$; exec sleep 1000' & sleep 1000", options=Option.STREAM)
    job = int(peer.wait_output(run, b"\n"))
    interrupt(peer, run)
    assert peer.finish(run).code == 130
    assert is_alive(job)


@pytest.mark.parametrize(
    "script",
    [
        b"sleep 1000",
        b"while :; do :; done",
        b"while :; do sleep 0.01; done",
        b"setsid sleep 1000 & wait",
        b"sh -c \"trap '' INT TERM; sleep 1000; sleep 1000\"",
    ],
)
def test_at_its_deadline_a_script_ends_and_the_shell_lives(peer: Peer, script: bytes) -> None:
    shell = peer.shell()
    ended = peer.run_in(shell, b"echo $$;" + script, deadline_ns=60 * MS)
    assert (ended.ending, ended.shell_ended) == (Ending.TIMEOUT, False)
    assert peer.run_in(shell, b"echo $$").stdout == ended.stdout.splitlines()[0] + b"\n"


def test_a_shell_that_will_not_stop_is_killed_at_the_deadline(peer: Peer) -> None:
    shell = peer.shell()
    ended = peer.run_in(shell, b"trap '' INT; sleep 1000 & echo $!; while :; do :; done", deadline_ns=60 * MS)
    assert (ended.ending, ended.shell_ended) == (Ending.TIMEOUT, True)
    assert not is_alive(int(ended.stdout))
    assert peer.result(shell) == (b"", b"")


def test_cancelling_a_run_keeps_the_shell(peer: Peer) -> None:
    shell = peer.shell()
    run = peer.begin_in(shell, b"echo on; sleep 1000", options=Option.STREAM)
    peer.wait_output(run, b"on")
    peer.send(run, Type.CANCEL)
    ended = peer.finish(run)
    assert (ended.ending, ended.shell_ended) == (Ending.CANCELLED, False)
    assert peer.run_in(shell, b"echo alive").stdout == b"alive\n"


def test_cancelling_a_shell_ends_its_run_and_all_its_processes(peer: Peer) -> None:
    shell = peer.shell()
    run = peer.begin_in(shell, b"setsid sleep 1000 & echo $!; sleep 1000", options=Option.STREAM)
    child = int(peer.wait_output(run, b"\n"))
    peer.send(shell, Type.CANCEL)
    ended = peer.finish(run)
    assert (ended.ending, ended.shell_ended) == (Ending.CANCELLED, True)
    assert peer.result(shell) == (b"", b"")
    wait_gone(child)


def test_jobs_of_a_shell_live_on_between_runs_and_die_with_it(peer: Peer) -> None:
    shell = peer.shell()
    job = int(peer.run_in(shell, b"sleep 1000 & echo $!").stdout)
    assert peer.run([b"true"]).code == 0
    assert peer.run_in(shell, b"kill -0 %d" % job).code == 0
    peer.send(shell, Type.CANCEL)
    assert peer.result(shell) == (b"", b"")
    wait_gone(job)


def test_a_second_run_in_a_busy_shell_is_refused(peer: Peer) -> None:
    shell = peer.shell()
    run = peer.begin_in(shell, b"echo on; sleep 1000", options=Option.STREAM)
    peer.wait_output(run, b"on")
    assert refusal(peer.run_in, shell, b"true").errno == errno.EBUSY
    peer.send(run, Type.CANCEL)
    assert peer.finish(run).ending == Ending.CANCELLED


def test_shells_do_not_disturb_each_other(peer: Peer) -> None:
    shells = [peer.shell() for _ in range(5)]
    for number, shell in enumerate(shells):
        peer.run_in(shell, b"n=%d" % number)
    runs = [peer.begin_in(shell, b"echo $n; sleep 0.05; echo $n") for shell in shells]
    assert [peer.finish(run).stdout for run in runs] == [b"%d\n%d\n" % (n, n) for n in range(5)]


def test_large_output_of_a_run_arrives_whole(peer: Peer) -> None:
    shell = peer.shell()
    ended = peer.run_in(shell, b"head -c 5000000 /dev/zero; echo end >&2")
    assert (len(ended.stdout), ended.stderr) == (5_000_000, b"end\n")


def test_output_of_a_run_is_capped(peer: Peer) -> None:
    shell = peer.shell()
    ended = peer.run_in(shell, b"seq 0 99999", limit=1000)
    assert (len(ended.stdout), ended.truncated, ended.stdout[-6:]) == (1000, True, b"99999\n")
    ended = peer.run_in(shell, b"yes", limit=1000, options=Option.OUTPUT_FATAL)
    assert (ended.ending, len(ended.stdout), ended.shell_ended) == (Ending.OUTPUT_LIMIT, 1000, False)
    assert peer.run_in(shell, b"echo alive").stdout.endswith(b"alive\n")


def test_a_run_without_credit_waits(peer: Peer) -> None:
    shell = peer.shell()
    run = peer.begin_in(shell, b"echo hello", window=2)
    peer.wait_output(run, b"he")
    peer.ping()
    peer.grant(run, 100)
    assert peer.finish(run).stdout == b"hello\n"


@pytest.mark.parametrize("size", [1, 5000, 900_000])
def test_a_script_of_any_size_is_run(peer: Peer, size: int) -> None:
    shell = peer.shell()
    assert peer.run_in(shell, b"#" * size + b"\necho first\necho last").stdout == b"first\nlast\n"
    assert peer.run_in(shell, b"echo short").stdout == b"short\n"


@pytest.mark.parametrize("options", [Option.TERMINAL, Option.STDIN_OPEN])
def test_what_a_shell_cannot_do_is_refused(peer: Peer, options: int) -> None:
    shell = peer.shell()
    refused = refusal(peer.run_in, shell, b"true", options=options)
    assert (refused.errno, refused.what) == (errno.EINVAL, "options")
    assert refusal(peer.run_in, shell, b"a\0b").what == "script"


def test_a_run_in_a_channel_that_is_no_shell_is_refused(peer: Peer) -> None:
    assert refusal(peer.run_in, 77, b"true").errno == errno.ENOENT
    command = peer.begin([b"sleep", b"1000"])
    assert refusal(peer.run_in, command, b"true").errno == errno.ENOENT


@pytest.mark.parametrize("fields", [{"cwd": b"/no/such"}, {"user": b"no-such-user"}])
def test_a_shell_that_cannot_start_is_an_error(peer: Peer, fields: dict[str, bytes]) -> None:
    refused = refusal(peer.shell, **fields)
    assert {refused.what: refused.detail} == fields


def test_without_bash_sh_takes_its_place(program: Path, start: Callable[..., Peer]) -> None:
    if os.geteuid() != 0:
        pytest.skip("hiding bash needs root: sudo make test")
    hide = 'for b in /bin/bash /usr/bin/bash; do [ ! -e $b ] || mount --bind /etc/passwd $b; done; exec "$@"'
    peer = start(program, through=("unshare", "--mount", "/bin/sh", "-c", hide, "sh"))
    assert peer.run(b"echo $0").stdout == b"/bin/sh\n"
    shell = peer.shell()
    peer.run_in(shell, b"x=kept; cd /usr")
    assert peer.run_in(shell, b"echo $0 $x; pwd; cat", stdin=b"in").stdout == b"/bin/sh kept\n/usr\nin"
    assert peer.run_in(shell, b"if ) then").shell_ended is False
    for script in (b"while :; do :; done", b"sleep 1000"):
        ended = peer.run_in(shell, script, deadline_ns=60 * MS)
        assert (ended.ending, ended.shell_ended) == (Ending.TIMEOUT, False)
    assert peer.run_in(shell, b"echo $x; (exit 4)").code == 4
    assert peer.run_in(shell, b"exit 6").shell_ended
