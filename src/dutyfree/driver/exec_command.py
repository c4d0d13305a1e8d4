"""A command by one exec call: its deadline, its end, and the search for its processes when it must die.

Every command carries a mark in its environment, which its children inherit; a kill is a second exec call, of a script
that looks the mark up in /proc until nobody has it. A process that gave its environment away is not found.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dutyfree.core.contract import Command
from dutyfree.core.errors import Misuse, SandboxLost, Unsupported
from dutyfree.core.outcome import Ending, Outcome
from dutyfree.core.pending import finish
from dutyfree.core.spec import Inside, User, check_path
from dutyfree.core.timeline import now_ns
from dutyfree.driver.exec_call import CappedStreams, ExecCall, ExecEnd, Execute, Sink
from dutyfree.guest.argument import check_request, command_items, env_items, input_bytes, optional_path, user_bytes
from dutyfree.guest.wire import SCRIPT

MARK_VARIABLE = "DUTYFREE_COMMAND"
KILL_ROUNDS = 8
KILL_PATIENCE_S = 2.0
"""How long a killed command may take to be gone before it is looked for again."""

_KILLED, _NOT_FOUND = 137, 127
"""A shell's own numbers; an exec call reports a signal in the same way."""

KILL = """
n=0
while [ $n -lt 50 ]; do
    n=$((n + 1)); found=
    for f in $(grep -lF "$0" /proc/[0-9]*/environ 2>/dev/null); do
        p=${f#/proc/}; found="$found ${p%/environ}"
    done
    [ -n "$found" ] || exit 0
    kill -9 $found 2>/dev/null
done
exit 1
"""
"""Kills every process that has `$0` in its environment; its own has it among the arguments only."""

COUNT_OOM = "cat /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events 2>/dev/null | grep '^oom_kill '"


class DispatchFloor:
    """The cheapest exec call a substrate has shown: what dispatch costs at least.

    An exec call does not tell when the process itself began, so a command's own time is taken to be what lies above
    this. The first command of all is then dispatch as a whole, and jitter of the substrate counts as the command's.
    """

    def __init__(self) -> None:
        self.ns = 1 << 62

    def run_ns(self, total_ns: int) -> int:
        """A command's own part of its total."""
        self.ns = min(self.ns, total_ns - 1)
        return total_ns - self.ns


@dataclass(kw_only=True, slots=True)
class Runner:
    """Runs commands in one sandbox through a driver's exec call."""

    execute: Execute
    sandbox: str
    env: Mapping[str, str]
    """Environment of every command."""
    cwd: str | None
    user: str | None
    floor: DispatchFloor
    give_up: Callable[[str], None]
    """Ends the sandbox: a command does not obey."""
    limited_memory: bool = False
    shell: str = "bash"
    """`sh` once it was seen that there is no bash."""
    oom_kills: int = 0

    def as_user(self, user: User | None) -> Runner:
        """The same for another user; None: this one."""
        if user is None:
            return self
        return replace(self, user=user_bytes(user).decode(errors="surrogateescape"))

    def execution(
        self,
        command: Command,
        *,
        cwd: Inside | None = None,
        env: Mapping[str, str] | None = None,
        stdin: object = b"",
        user: User | None = None,
        merge_stderr: bool = False,
    ) -> ExecCall:
        """A checked request, as a caller of `Sandbox.run` gives it."""
        options, argv = command_items(command)
        given = input_bytes(stdin)
        variables = env_items(env)
        place = None if cwd is None else check_path("cwd", cwd)
        optional_path("cwd", place)
        who = user_bytes(user).decode(errors="surrogateescape") or self.user
        check_request(b"".join([*argv, *variables]), argv, variables)
        if options & SCRIPT and len(argv) == 1:
            words = [self.shell, "-c", script_text(argv[0])]
        else:
            words = command_text([self.shell.encode(), b"-c", *argv] if options & SCRIPT else argv)
        if merge_stderr:
            words = ["sh", "-c", 'exec "$@" 2>&1', "sh", *words]
        return ExecCall(argv=words, env={**self.env, **(env or {})}, cwd=place or self.cwd, user=who, stdin=given)

    async def run(
        self, wanted: ExecCall, limit_bytes: int, *, timeout_s: float | None = None, fatal_output: bool = False
    ) -> Outcome:
        """Run the call to its end, or to its deadline."""
        start_ns = now_ns()
        kept = CappedStreams(limit_bytes)
        ended, ending = await self.carry(wanted, kept, timeout_s, kept.over if fatal_output else None)
        code, note, kills = ended.exit_code, b"", 0
        if ended.refusal is not None and ending is None:
            code, note = ending_of(ended.refusal, cwd=wanted.cwd, user=wanted.user, sandbox=self.sandbox)
            if code == _NOT_FOUND and wanted.argv[0] == "bash" and self.shell == "bash":
                self.shell = "sh"
                wanted = wanted._replace(argv=["sh", *wanted.argv[1:]])
                return await self.run(wanted, limit_bytes, timeout_s=timeout_s, fatal_output=fatal_output)
            kept = CappedStreams(limit_bytes)
        elif ending is None and code == _KILLED and self.limited_memory and (kills := await self._new_oom_kills()):
            ending = "oom"
        total_ns = now_ns() - start_ns
        return Outcome(
            ending=ending or "exit",
            exit_code=code if ending is None else None,
            signal=9 if ending else None,
            stdout=kept.stdout.kept(),
            stderr=kept.stderr.kept() + note[:limit_bytes],
            truncated=kept.omitted_bytes > 0,
            omitted_bytes=kept.omitted_bytes,
            stderr_omitted_bytes=kept.stderr.omitted_bytes,
            stdout_gap=kept.stdout.gap,
            stderr_gap=kept.stderr.gap,
            run_ns=self.floor.run_ns(total_ns) if ended.run_ns is None else min(ended.run_ns, total_ns),
            total_ns=total_ns,
            oom_kills=kills,
        )

    async def carry(
        self, wanted: ExecCall, sink: Sink, timeout_s: float | None = None, over: asyncio.Event | None = None
    ) -> tuple[ExecEnd, Ending | None]:
        """One exec call and, if it comes to that, its killing; the ending is None unless it was ours."""
        mark = secrets.token_hex(12)
        marked = wanted._replace(env={**wanted.env, MARK_VARIABLE: mark})
        task = asyncio.ensure_future(self.execute(marked, sink))
        watch = asyncio.ensure_future(over.wait()) if over else None
        try:
            await asyncio.wait({task, watch} if watch else {task}, timeout=timeout_s, return_when="FIRST_COMPLETED")
            ending: Ending | None = None
            if not task.done():
                ending = "output-limit" if watch and watch.done() else "timeout"
                await self._end(task, mark, wanted.user)
            return await task, ending
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxLost):
                await finish(self._end(task, mark, wanted.user))
            raise
        finally:
            if watch:
                watch.cancel()
            await _dropped(task)

    async def _end(self, task: asyncio.Future[ExecEnd], mark: str, user: str | None) -> None:
        """Kill until the exec call is over: one that had not begun yet is not found at first."""
        for _ in range(KILL_ROUNDS):
            if task.done():
                return
            await self.execute(ExecCall(argv=["sh", "-c", KILL, mark], user=user), CappedStreams(0))
            await asyncio.wait({task}, timeout=KILL_PATIENCE_S)
        if not task.done():
            self.give_up("a command could not be killed")
            raise SandboxLost("the sandbox is gone: a command could not be killed", sandbox=self.sandbox)

    async def _new_oom_kills(self) -> int:
        kept = CappedStreams(4096)
        with contextlib.suppress(Unsupported):  # who cannot be root sees an exit code of 137
            await self.execute(ExecCall(argv=["sh", "-c", COUNT_OOM], user="0"), kept)
        counts = [int(line.split()[1]) for line in kept.stdout.kept().splitlines() if line.split()[1:]]
        before, self.oom_kills = self.oom_kills, max([self.oom_kills, *counts])
        return self.oom_kills - before


async def _dropped(task: asyncio.Future[ExecEnd]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


_CWD = re.compile(r"chdir to cwd|cwd must|workdir|working directory|no such directory|failed to .*cwd", re.IGNORECASE)
_USER = re.compile(r"unable to find (user|group)|no matching entries in|no users found|unknown user", re.IGNORECASE)
_LONG = re.compile(r"argument list too long|E2BIG", re.IGNORECASE)
_ABSENT = re.compile(
    r"not found in \$PATH|no such file or directory|not a directory|file not found|error finding executable",
    re.IGNORECASE,
)

_REFUSED = re.compile(
    r"(Error: )?\S*:? ?(OCI runtime exec failed|exec failed:|unable to find (user|group)|no matching entries)"
)
"""How the words begin with which nothing was started; a program may say the same, and fools its own caller only."""


def is_refusal(words: str) -> bool:
    """The words are a runtime's, about a process that it did not start."""
    return _REFUSED.match(words) is not None


def refusal_of(words: str) -> str | None:
    """Give the words back if they are a runtime's, about a process that it did not start."""
    return words if is_refusal(words) else None


def is_user_refusal(words: str) -> bool:
    """The substrate does not know the user it was asked for."""
    return _USER.search(words) is not None


def ending_of(words: str, *, cwd: Inside | None, user: User | None, sandbox: str) -> tuple[int, bytes]:
    """The exit code a shell would give and a line for stderr; raises `Misuse` for what the caller got wrong."""
    said = words.strip()
    if is_user_refusal(said):
        raise Misuse(f"{user!r} is not known inside", field="user", sandbox=sandbox)
    if _CWD.search(said):
        raise Misuse(f"{cwd!r} is no directory inside", field="cwd", sandbox=sandbox)
    if _LONG.search(said):
        raise Misuse("arguments and environment are longer than the kernel takes", field="command", sandbox=sandbox)
    return (127 if _ABSENT.search(said) else 126), said.encode(errors="replace") + b"\n"


def command_text(argv: Sequence[bytes]) -> list[str]:
    """The same command as text; through `sh` if a word is not UTF-8."""
    try:
        return [word.decode() for word in argv]
    except UnicodeDecodeError:
        return ["sh", "-c", f"exec {' '.join(map(shell_word, argv))}"]


def script_text(script: bytes) -> str:
    """The same script as text."""
    try:
        return script.decode()
    except UnicodeDecodeError:
        return f"eval {shell_word(script)}"


def shell_word(word: bytes) -> str:
    """One word of a script, quoted."""
    try:
        return shlex.quote(word.decode())
    except UnicodeDecodeError:
        octal = "".join(f"\\{byte:03o}" for byte in word)
        if word.endswith(b"\n"):
            raise Misuse(
                "ends in a newline and is not UTF-8: this interface cannot carry both", field="command"
            ) from None
        return f"\"$(printf '{octal}')\""


def exec_flags(call: ExecCall) -> list[str]:
    """Spell a call's variables, directory and user as `docker exec` and `podman exec` take them."""
    flags = [f"--env={name}={value}" for name, value in call.env.items()]
    flags += [f"--workdir={call.cwd}"] if call.cwd else []
    return flags + ([f"--user={call.user}"] if call.user else [])
