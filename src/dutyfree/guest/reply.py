"""Parse what the agent sends, strictly: every length, enum and range is checked; all else is a `Violation`."""

from __future__ import annotations

import stat
from struct import Struct
from typing import Final, Literal, NamedTuple

from dutyfree.core.contract import FileInfo
from dutyfree.core.errors import Violation
from dutyfree.core.outcome import Ending
from dutyfree.core.text import printable
from dutyfree.guest.wire import MAGIC, U32, VERSION

_HELLO: Final = Struct("<IHHIQ")
_EXIT: Final = Struct("<BBHIQQQQQ")
_ENTRY: Final = Struct("<IIIQq")
_ENDINGS: Final[tuple[Ending, ...]] = ("exit", "signal", "timeout", "oom", "output-limit", "cancelled")
_MAX_I64: Final = (1 << 63) - 1
_MAX_NAME: Final = 255
_MAX_TEXT: Final = 500


class Exit(NamedTuple):
    """End of a command, as the frame EXIT says."""

    ending: Ending
    code: int
    truncated: bool
    shell_ended: bool
    run_ns: int
    cpu_ns: int
    max_rss_bytes: int
    omitted_bytes: int
    stderr_omitted_bytes: int
    oom_kills: int


class Failure(NamedTuple):
    """Failure of a call, as the frame ERROR says."""

    errno: int
    what: str
    detail: str


def check_hello(payload: memoryview) -> int:
    """The agent's feature bits, if it is an agent of our version."""
    _exact("HELLO", payload, _HELLO.size)
    magic, version, zero, max_frame, features = _HELLO.unpack(payload)
    if magic != MAGIC:
        raise Violation(f"HELLO has the magic {magic:#x}: not an agent")
    if version != VERSION:
        raise Violation(f"the agent speaks version {version}, not {VERSION}")
    if zero or max_frame < 4096:
        raise Violation("HELLO makes no sense")
    return int(features)


def parse_exit(payload: memoryview) -> Exit:
    """EXIT."""
    if len(payload) != 48:
        raise Violation(f"EXIT has {len(payload)} bytes, not 48")
    ending, flags, oom_kills, code, run_ns, cpu_ns, rss, omitted, of_stderr = _EXIT.unpack(payload)
    if ending > 5 or flags > 3:
        raise Violation(f"EXIT has ending {ending}, flags {flags}")
    if code > (64 if ending == 1 else 255):
        raise Violation(f"EXIT has the code {code}")
    if max(run_ns, cpu_ns, rss, omitted) > _MAX_I64 or of_stderr > omitted:
        raise Violation("EXIT has a count that no command can reach")
    return Exit(
        _ENDINGS[ending], code, bool(flags & 1), bool(flags & 2), run_ns, cpu_ns, rss, omitted, of_stderr, oom_kills
    )


def parse_error(payload: memoryview) -> Failure:
    """ERROR. The texts are made safe to show."""
    if len(payload) < 4:
        raise Violation("ERROR is too short")
    (number,) = U32.unpack_from(payload)
    what, at = _take(payload, 4)
    detail, at = _take(payload, at)
    if at != len(payload) or number > 4095:
        raise Violation("ERROR is malformed")
    return Failure(number, _shown(what), _shown(detail))


def parse_entry(payload: memoryview, at: int) -> tuple[FileInfo, int]:
    """One entry of LIST or STAT, and where the next one starts. The name is checked by `listed`."""
    if len(payload) - at < _ENTRY.size:
        raise Violation("a file entry is cut short")
    mode, uid, gid, size, mtime_ns = _ENTRY.unpack_from(payload, at)
    name, at = _take(payload, at + _ENTRY.size)
    if mode > 0o177777 or size > _MAX_I64 or len(name) > 4096:
        raise Violation("a file entry makes no sense")
    info = FileInfo(
        name=str(name, "utf-8", "surrogateescape"),
        kind=_kind(mode),
        size_bytes=size,
        mode=stat.S_IMODE(mode),
        uid=uid,
        gid=gid,
        mtime_ns=mtime_ns,
    )
    return info, at


def check_listed(info: FileInfo) -> FileInfo:
    """A directory's entry must have a name that can be in a directory."""
    name = info.name
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise Violation("a directory entry has an impossible name")
    if len(name.encode("utf-8", "surrogateescape")) > _MAX_NAME:
        raise Violation("a directory entry has an impossible name")
    return info


def parse_number(what: str, payload: memoryview, shape: Struct) -> int:
    """A payload that is exactly one integer."""
    _exact(what, payload, shape.size)
    return int(shape.unpack(payload)[0])


def check_empty(what: str, payload: memoryview) -> None:
    """A payload that must have nothing in it."""
    _exact(what, payload, 0)


def _exact(what: str, payload: memoryview, size: int) -> None:
    if len(payload) != size:
        raise Violation(f"{what} has {len(payload)} bytes, not {size}")


def _take(payload: memoryview, at: int) -> tuple[memoryview, int]:
    start = at + 4
    if start > len(payload):
        raise Violation("a length is cut short")
    stop = start + U32.unpack_from(payload, at)[0]
    if stop > len(payload):
        raise Violation("a length runs past the frame")
    return payload[start:stop], stop


def _shown(raw: memoryview) -> str:
    return printable(str(raw[:_MAX_TEXT], "utf-8", "replace"))


def _kind(mode: int) -> Literal["file", "directory", "symlink", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"
