"""Commands through an interface that gives back text: bytes survive as base64, made inside and decoded here.

A vendor's exec call runs a script by a shell of the sandbox. Ours runs the command with each of its outputs through
`base64`, and ends by telling the exit code and the command's own time. What the shell prints before ours begins (a
profile, a greeting) is passed over. The lines of a stream:

    :                       ours begins
    QUJD…                   output; where both streams share one text, with 1 or 2 before it
    :0 1718.5 1719.5        the end, in the standard output: exit code (or `cwd`, `user`), when it began and ended

The sandbox can say here what it likes: it deceives its own caller only, and what is no such line is a `DriverError`.
"""

from __future__ import annotations

import binascii
import itertools
import os
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from dutyfree.core.errors import DriverError
from dutyfree.driver.exec_call import ExecCall, ExecEnd, Sink
from dutyfree.driver.exec_command import shell_word

INLINE = 64 << 10
"""Input up to this size travels in the script. One argument of a program holds 128 KiB, and a script is one."""

LONGEST_SCRIPT = 120 << 10
PIECE = 4 << 20
"""What is put into one file, about: up to twice as much."""

_WIDTH = 3000
"""A line: a multiple of four, and less than what a pipe takes as a whole."""
_PACED = 'base64 -w 12000 | while read -r d || [ -n "$d" ]; do echo "$d"; dd bs=64k count=3 2>/dev/null; done'
"""Now and then the shell itself reads a line, byte by byte: that sets the pace, and costs nothing where there is little output."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_END = re.compile(r":(\d{1,3}|cwd|user) ?(\d+[.,]\d+)? ?(\d+[.,]\d+)?")
_LONGEST_LINE = 1 << 16
_REFUSALS = {"cwd": "no such directory", "user": "unknown user"}

Put = Callable[[str, bytes], Awaitable[None]]
"""Writes a file of the sandbox, so that the command's user can read it."""

# 3, 4: the outputs of the script itself · 5: the exit code and the times · 6: the command's errors, on their way to base64
_SCRIPT = """\
{begin}exec 3>&1 4>&2
c=$({{ {hold}{{ {{ {place}{person}b=$EPOCHREALTIME; {feed}( {variables}exec {switch}{command} ) {input}2>&6 3>&- 4>&- 5>&- 6>&-; echo "$? $b $EPOCHREALTIME" >&5; }} 2>/dev/null | {out} >&3; }} 6>&1 | {err}; }} 5>&1)
printf ':%s\\n' "$c"
"""


async def prepare(
    wanted: ExecCall, put: Put, *, shared: bool = False, switch: bool = False, paced: bool = False
) -> str:
    """A script that carries an execution: for `bash -c`, or any `sh -c`, which then tells no times.

    What it was given by files it removes. `shared`: the vendor gives both streams as one text. `switch`: the vendor
    runs it as root, and the script becomes the user that is wanted, by util-linux's `setpriv`. `paced`: the vendor
    holds no writer up, so that output is encoded piece by piece, at a rate that a reader keeps up with.
    """
    stem = f"/tmp/.dutyfree-{os.urandom(8).hex()}"  # noqa: S108 - a path of the sandbox
    feed, given = await _source(wanted, put, stem)
    script = _script(wanted, feed, given, shared=shared, switch=switch, paced=paced)
    tidy = f"trap 'rm -f {stem}-*' EXIT\n"
    if len(script.encode()) <= LONGEST_SCRIPT:
        return tidy + script if stem in feed else script
    await put(f"{stem}-run", (tidy + script).encode())
    return f". {stem}-run"


class Reading:
    """A script's text on its way to a sink."""

    def __init__(self, sink: Sink, *, driver: str, shared: bool = False) -> None:
        self._sink = sink
        self._driver = driver
        self._shared = shared
        self._rest: dict[int, str] = {}
        self._begun: set[int] = set()
        self.ended: ExecEnd | None = None
        """How the command ended, once the script told it."""

    async def take(self, stream: int, text: str) -> None:
        """The next piece of a stream (`STDOUT`, where they share one)."""
        whole, newline, rest = (self._rest.get(stream, "") + text).rpartition("\n")
        if len(rest) > _LONGEST_LINE:
            raise self._nonsense(rest)
        self._rest[stream] = rest
        lines = whole.split("\n") if newline else []
        if stream not in self._begun and ":" in lines:
            self._begun.add(stream)
            lines = lines[lines.index(":") + 1 :]
        if stream in self._begun:
            await self._take_lines(stream, lines)

    async def _take_lines(self, stream: int, lines: list[str]) -> None:
        for kind, group in itertools.groupby(lines, key=self._kind):
            if kind == ":":
                for line in group:
                    self._end(line)
            elif kind in ("1", "2"):
                await self._sink.add(int(kind), self._bytes("".join(line[1:] for line in group)))
            elif data := self._bytes("".join(group)):
                await self._sink.add(stream, data)

    def _kind(self, line: str) -> str:
        first = line[:1]
        return first if first == ":" or (self._shared and first in ("1", "2")) else ""

    def _bytes(self, text: str) -> bytes:
        try:
            return binascii.a2b_base64(text.replace("\r", ""), strict_mode=True) if text else b""
        except ValueError:
            raise self._nonsense(text) from None

    def _end(self, line: str) -> None:
        found = _END.fullmatch(line.rstrip())
        if found is None:
            raise self._nonsense(line)
        code, begun, over = found.groups()
        if code in _REFUSALS:
            self.ended = ExecEnd(exit_code=1, refusal=_REFUSALS[code])
            return
        run_ns = _nanoseconds(over) - _nanoseconds(begun) if begun and over else 0
        self.ended = ExecEnd(exit_code=int(code) & 0xFF, run_ns=run_ns if run_ns > 0 else None)

    def _nonsense(self, text: str) -> DriverError:
        return DriverError(f"the sandbox's shell says {text[:80]!r}", driver=self._driver, step="exec")


def _script(wanted: ExecCall, feed: str, given: str, *, shared: bool, switch: bool, paced: bool) -> str:
    another = wanted.user is not None and switch
    plain = {name: value for name, value in wanted.env.items() if _NAME.fullmatch(name)}
    other = [f"{name}={value}" for name, value in wanted.env.items() if name not in plain]
    words = [*(["env", *other] if other else []), *wanted.argv]
    encode = _PACED if paced else f"base64 -w {_WIDTH}"
    return _SCRIPT.format(
        begin="printf ':\\n'\n" if shared else "printf ':\\n'; printf ':\\n' >&2\n",
        feed=feed,
        input=given,
        person=_person(wanted.user) if another and wanted.user else "",
        switch='setpriv --reuid "$u" --regid "$g" --clear-groups ' if another else "",
        place=f"cd -- {_quoted(wanted.cwd)} 2>/dev/null || {{ echo cwd >&5; exit; }}; " if wanted.cwd else "",
        variables="".join(f"export {name}={_quoted(value)}; " for name, value in plain.items()),
        command=" ".join(map(_quoted, words)),
        # Lines of two writers could get into each other: the errors are held back until the output is through.
        hold="e=$(" if shared else "",
        out=f"{encode} | sed s/^/1/" if shared else encode,
        err=f"{encode} | sed s/^/2/); printf '%s\\n' \"$e\" >&3" if shared else f"{encode} >&4",
    )


def _person(user: str) -> str:
    """Finds out the numbers of `user[:group]`, or refuses."""
    name, _, group = user.partition(":")
    nobody = "|| { echo user >&5; exit; }; "
    number = f"u={name}; " if name.isdecimal() else f"u=$(id -u -- {_quoted(name)}) {nobody}"
    if group.isdecimal():
        return f"{number}g={group}; "
    if group:
        return f'{number}g=$(getent group {_quoted(group)} | cut -d: -f3); [ -n "$g" ] {nobody}'
    return f"{number}g=$(id -g -- {_quoted(name)} || echo 0); "


async def _source(wanted: ExecCall, put: Put, stem: str) -> tuple[str, str]:
    """Build the command's input: the part before it in a pipe, and its redirection."""
    if isinstance(wanted.stdin, bytes | bytearray | memoryview):
        if not wanted.stdin:
            return "", "</dev/null "
        if len(wanted.stdin) <= INLINE:
            return f"printf %s {b64encode(wanted.stdin).decode()} | base64 -d | ", ""
    held, count = bytearray(), 0
    async with aclosing(wanted.input(PIECE)) as pieces:
        async for piece in pieces:
            held += piece
            if len(held) >= PIECE:
                await put(f"{stem}-{count:06d}", bytes(held))
                held.clear()
                count += 1
    if held:
        await put(f"{stem}-{count:06d}", bytes(held))
        count += 1
    return (f"cat {stem}-?????? | ", "") if count else ("", "</dev/null ")


def _quoted(text: str) -> str:
    return shell_word(text.encode(errors="surrogateescape"))


def _nanoseconds(clock: str) -> int:
    whole, _, micros = clock.replace(",", ".").partition(".")
    return int(whole) * 10**9 + int(micros.ljust(9, "0")[:9])
