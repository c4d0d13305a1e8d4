"""File calls by exec: one script each, on what `script` holds."""

from __future__ import annotations

import stat as modes
from typing import Literal

from dutyfree.core.contract import FileInfo
from dutyfree.core.errors import Misuse
from dutyfree.core.spec import Content, Inside
from dutyfree.driver import script
from dutyfree.driver.exec_call import ExecCall
from dutyfree.driver.exec_command import Runner, command_text
from dutyfree.guest.argument import input_bytes, path_bytes, whole

Kind = Literal["file", "directory", "symlink", "other"]

_MOST = 1 << 50
_LETTERS: dict[str, Kind] = {"f": "file", "d": "directory", "l": "symlink"}
_FORMATS: dict[int, Kind] = {modes.S_IFREG: "file", modes.S_IFDIR: "directory", modes.S_IFLNK: "symlink"}


def scripted(runner: Runner, text: str, *words: bytes, stdin: object = b"") -> ExecCall:
    """A script with its arguments, as the sandbox's own user."""
    argv = command_text([b"sh", b"-c", text.encode(), b"sh", *words])
    return ExecCall(argv=argv, user=runner.user, stdin=input_bytes(stdin, "data"))


async def perform(runner: Runner, text: str, path: Inside, *words: bytes, stdin: object = b"") -> bytes:
    """Run a script; its output, or the OSError its exit code stands for."""
    outcome = await runner.run(scripted(runner, text, *words, stdin=stdin), _MOST)
    if not outcome.ok:
        raise script.failure(outcome.exit_code or 0, outcome.stderr, str(path))
    return outcome.stdout


async def read(runner: Runner, path: Inside, offset: int, length: int | None) -> bytes:
    """`Sandbox.read`."""
    raw = path_bytes("path", path)
    first = whole("offset", offset, 0, _MOST) + 1
    most = b"" if length is None else b"%d" % whole("length", length, 0, _MOST)
    return await perform(runner, script.READ, path, raw, b"%d" % first, most)


async def write(runner: Runner, path: Inside, data: Content, mode: int, append: bool) -> None:
    """`Sandbox.write`."""
    raw = path_bytes("path", path)
    content = input_bytes(data, "data")
    bits = b"%o" % whole("mode", mode, 0, 0o7777)
    await perform(runner, script.WRITE, path, raw, bits, b"append" if append else b"replace", stdin=content)


async def stat(runner: Runner, path: Inside, follow: bool) -> FileInfo:
    """`Sandbox.stat`."""
    raw = path_bytes("path", path)
    out = await perform(runner, script.STAT, path, raw, b"follow" if follow else b"")
    mode, uid, gid, size, mtime = out.split()
    bits = int(mode, 16)
    name = str(path).rstrip("/").rpartition("/")[2] or "/"
    return _info(name, _FORMATS.get(modes.S_IFMT(bits), "other"), bits, uid, gid, size, mtime)


async def entries(runner: Runner, path: Inside, limit: int) -> list[FileInfo]:
    """`Sandbox.list`."""
    raw = path_bytes("path", path)
    whole("limit", limit, 1, _MOST)
    out = await perform(runner, script.LIST, path, raw)
    records = out.split(b"\0")[:-1]
    if len(records) > limit:
        raise Misuse(f"{path} has more than {limit} entries: list a smaller directory", field="limit")
    return sorted((_record(record) for record in records), key=lambda entry: entry.name)


async def mkdir(runner: Runner, path: Inside, mode: int) -> None:
    """`Sandbox.mkdir`."""
    await perform(runner, script.MKDIR, path, path_bytes("path", path), b"%o" % whole("mode", mode, 0, 0o7777))


async def remove(runner: Runner, path: Inside, recursive: bool) -> None:
    """`Sandbox.remove`."""
    await perform(runner, script.REMOVE, path, path_bytes("path", path), b"recursive" if recursive else b"")


async def rename(runner: Runner, source: Inside, target: Inside) -> None:
    """`Sandbox.rename`."""
    await perform(runner, script.RENAME, source, path_bytes("source", source), path_bytes("target", target))


def _record(record: bytes) -> FileInfo:
    form, mode, uid, gid, size, mtime, name = record.split(b" ", 6)
    letter = form.decode(errors="replace")
    kind = _LETTERS.get(letter) or (
        _FORMATS.get(modes.S_IFMT(int(letter, 16)), "other") if len(letter) > 1 else "other"
    )
    return _info(name.decode(errors="surrogateescape"), kind, int(mode, 8), uid, gid, size, mtime)


def _info(name: str, kind: Kind, mode: int, uid: bytes, gid: bytes, size: bytes, mtime: bytes) -> FileInfo:
    seconds, _, fraction = mtime.partition(b".")
    mtime_ns = int(seconds) * 10**9 + int(fraction[:9].ljust(9, b"0") or 0)
    return FileInfo(
        name=name,
        kind=kind,
        size_bytes=int(size),
        mode=modes.S_IMODE(mode),
        uid=int(uid),
        gid=int(gid),
        mtime_ns=mtime_ns,
    )
