"""A tar stream taken apart, strictly: the subset the agent makes (ustar and pax records; files, directories, links).

The bytes are hostile. Names are relative, without `..`, and bounded; numbers are octal; checksums hold; anything else
is a `Violation`. Writes nothing: `unpack` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, Protocol

from dutyfree.core.errors import Violation

_BLOCK: Final = 512
_MAX_PAX: Final = 64 << 10
_MAX_PATH: Final = 4095
_MAX_NAME: Final = 255
_MAX_SIZE: Final = (1 << 63) - 1

Kind = Literal["file", "directory", "symlink"]
_KINDS: Final[dict[bytes, Kind]] = {b"0": "file", b"5": "directory", b"2": "symlink"}


class Entry(NamedTuple):
    """One member's header."""

    kind: Kind
    parts: tuple[bytes, ...]
    """Components of the name; empty: the root itself."""
    target: bytes
    """Of a symlink."""
    mode: int
    size: int
    mtime_ns: int


class Receiver(Protocol):
    """Consumer of the members."""

    def begin(self, entry: Entry) -> None:
        """A member starts."""
        ...

    def content(self, data: memoryview) -> None:
        """Some of its bytes."""
        ...

    def end(self) -> None:
        """It is complete."""
        ...


class Untar:
    """Feed it the stream in any pieces; it drives a `Receiver`. Holds one header and one pax block at most."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._held = bytearray()
        self._need = _BLOCK
        self._step: Callable[[memoryview], None] = self._header
        self._left = 0
        self._padding = 0
        self._said: dict[str, bytes] = {}
        self._finished = False

    def feed(self, data: bytes) -> None:
        """The next bytes. Raises `Violation`, and whatever the receiver raises."""
        rest = memoryview(data)
        while rest and not self._finished:
            if self._left:
                piece = rest[: self._left]
                self._receiver.content(piece)
                self._left -= len(piece)
                rest = rest[len(piece) :]
                if not self._left:
                    self._receiver.end()
            elif self._padding:
                skipped = min(self._padding, len(rest))
                self._padding -= skipped
                rest = rest[skipped:]
            else:
                taken = rest[: self._need - len(self._held)]
                self._held += taken
                rest = rest[len(taken) :]
                if len(self._held) == self._need:
                    block, self._held = self._held, bytearray()
                    self._step(memoryview(block))

    def close(self) -> None:
        """The stream has ended: it must have done so where an archive ends."""
        if not self._finished:
            raise Violation("the tar stream is cut short")

    def _header(self, block: memoryview) -> None:
        raw = bytes(block)
        if not any(raw):
            self._finished = True
            return
        if _octal(raw[148:156]) != sum(raw) - sum(raw[148:156]) + 8 * 32:
            raise Violation("a tar header has a wrong checksum")
        size = _octal(raw[124:136])
        if raw[156:157] == b"x":
            if not 0 < size <= _MAX_PAX:
                raise Violation(f"a pax header of {size} bytes")
            self._need, self._step = size, self._pax
            self._padding = 0
            return
        self._member(raw, size)

    def _pax(self, block: memoryview) -> None:
        self._said = _records(bytes(block))
        self._padding = -len(block) % _BLOCK
        self._need, self._step = _BLOCK, self._header

    def _member(self, raw: bytes, size: int) -> None:
        said, self._said = self._said, {}
        kind = _KINDS.get(raw[156:157])
        if kind is None:
            raise Violation(f"a tar member of type {raw[156:157]!r}")
        prefix = _text(raw[345:500])
        name = said.get("path") or (prefix + b"/" if prefix else b"") + _text(raw[:100])
        if "size" in said:
            size = _decimal(said["size"])
        if size > _MAX_SIZE or (size and kind != "file"):
            raise Violation(f"a tar member of {size} bytes")
        target = said.get("linkpath") or _text(raw[157:257])
        mtime_ns = _time_ns(said["mtime"]) if "mtime" in said else _octal(raw[136:148]) * 10**9
        entry = Entry(kind, _parts(name), target, _octal(raw[100:108]) & 0o777, size, mtime_ns)
        self._receiver.begin(entry)
        self._left, self._padding = size, -size % _BLOCK
        if not size:
            self._receiver.end()


def _text(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]


def _octal(field: bytes) -> int:
    digits = field.strip(b"\0 ")
    if digits.strip(b"01234567"):
        raise Violation("a tar header has a number that is not octal")
    return int(digits or b"0", 8)


def _decimal(field: bytes) -> int:
    if not field.isdigit() or len(field) > 19:
        raise Violation("a pax record has a number that is none")
    return int(field)


def _time_ns(field: bytes) -> int:
    seconds, _, fraction = field.partition(b".")
    if fraction and not fraction.isdigit():
        raise Violation("a pax record has a time that is none")
    nanoseconds = int(fraction[:9].ljust(9, b"0")) if fraction else 0
    if seconds.startswith(b"-"):
        return -_decimal(seconds[1:]) * 10**9 - nanoseconds
    return _decimal(seconds) * 10**9 + nanoseconds


def _records(block: bytes) -> dict[str, bytes]:
    records: dict[str, bytes] = {}
    at = 0
    while at < len(block):
        space = block.find(b" ", at, at + 8)
        if space < 0:
            raise Violation("a pax record has no length")
        stop = at + _decimal(block[at:space])
        if stop <= space + 1 or stop > len(block) or block[stop - 1 : stop] != b"\n":
            raise Violation("a pax record has a wrong length")
        key, equals, value = block[space + 1 : stop - 1].partition(b"=")
        if not equals:
            raise Violation("a pax record has no value")
        records[key.decode("ascii", "replace")] = value
        at = stop
    return records


def _parts(name: bytes) -> tuple[bytes, ...]:
    if len(name) > _MAX_PATH or name.startswith(b"/") or b"\0" in name:
        raise Violation("a tar member has a name that leads elsewhere")
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts or any(len(part) > _MAX_NAME for part in parts):
        raise Violation("a tar member has a name that leads elsewhere")
    return parts
