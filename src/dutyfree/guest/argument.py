"""Check callers' arguments and encode them for the wire: `Misuse` names the argument at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dutyfree.core.contract import Command, TerminalSize
from dutyfree.core.errors import Misuse
from dutyfree.core.spec import check_env, check_path, check_timeout, check_user
from dutyfree.guest.wire import MAX_REQUEST, SCRIPT, Bytes

FIRST_INPUT: Final = 64 << 10
"""Input up to this size travels in the request itself."""

_MAX_OUTPUT: Final = 1 << 40
_MAX_FORKS: Final = 10_000
_MAX_REQUEST: Final = MAX_REQUEST - FIRST_INPUT - 4
_MAX_USER: Final = 255
_MAX_SCRIPT: Final = 120 << 10
"""Linux takes no argument of more than 128 KiB."""
_SCRIPT_PIECE: Final = _MAX_SCRIPT // 4
"""In characters, each of which may take four bytes."""
_LAUNCHER: Final = b'eval "set --; $(printf %s "$@")"'
"""Puts a script together that came in pieces, as `$1` and so on, and runs it without them."""
_NO_ENV: Final[Sequence[bytes]] = ()


def encoded(field: str, value: str) -> bytes:
    """The bytes of a name: surrogate escapes become the bytes they stand for."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Misuse(f"{value!r} has characters that no encoding knows", field=field) from None


def path_bytes(field: str, value: object) -> bytes:
    """An absolute path."""
    raw = encoded(field, check_path(field, value))
    if len(raw) >= 4096:
        raise Misuse(f"is {len(raw)} bytes long; paths end at 4095", field=field)
    return raw


def optional_path(field: str, value: object) -> bytes:
    """An absolute path, or empty for None."""
    return b"" if value is None else path_bytes(field, value)


def user_bytes(value: object) -> bytes:
    """A user, or empty for None."""
    if value is None:
        return b""
    raw = encoded("user", check_user("user", value))
    if len(raw) > _MAX_USER:
        raise Misuse(f"is {len(raw)} bytes long; names end at {_MAX_USER}", field="user")
    return raw


def script_bytes(field: str, value: object) -> bytes:
    """A script; an empty one does nothing."""
    if not isinstance(value, str):
        raise Misuse(f"must be a string, not {type(value).__name__}", field=field)
    if "\0" in value:
        raise Misuse("contains a NUL character", field=field)
    return encoded(field, value)


def command_items(command: Command) -> tuple[int, list[bytes]]:
    """The option bit and the argv: a string is a script, and a long one comes in pieces after what joins them."""
    if isinstance(command, str):
        script = script_bytes("command", command)
        if len(script) <= _MAX_SCRIPT:
            return SCRIPT, [script]
        pieces = range(0, len(command), _SCRIPT_PIECE)
        return SCRIPT, [_LAUNCHER, b"bash", *(encoded("command", command[at : at + _SCRIPT_PIECE]) for at in pieces)]
    if isinstance(command, bytes | bytearray | memoryview) or not isinstance(command, Sequence):
        raise Misuse(f"must be a string or a list of strings, not {type(command).__name__}", field="command")
    if not command:
        raise Misuse("is an empty list", field="command")
    for item in command:
        if not isinstance(item, str):
            raise Misuse(f"must hold strings, not {type(item).__name__}", field="command")
        if "\0" in item:
            raise Misuse("contains a NUL character", field="command")
    if not command[0]:
        raise Misuse("names no program", field="command")
    return 0, [encoded("command", item) for item in command]


def env_items(env: Mapping[str, str] | None, field: str = "env") -> Sequence[bytes]:
    """`NAME=value` for each variable."""
    if not env:
        if env is not None and not isinstance(env, Mapping):
            raise Misuse(f"must be a mapping, not {type(env).__name__}", field=field)
        return _NO_ENV
    return [encoded(field, f"{name}={value}") for name, value in check_env(field, env).items()]


def input_bytes(value: object, field: str = "stdin") -> Bytes:
    """Bytes, a view of bytes, or text, which is sent as UTF-8."""
    if isinstance(value, bytes | bytearray):
        return value
    if isinstance(value, str):
        return encoded(field, value)
    if isinstance(value, memoryview) and value.contiguous:
        return value.cast("B")
    raise Misuse(f"must be bytes or a string, not {type(value).__name__}", field=field)


def deadline_ns(timeout_s: object) -> int:
    """0 for no deadline."""
    seconds = check_timeout("timeout_s", timeout_s)
    return 0 if seconds is None else max(1, int(seconds * 1e9))


def whole(field: str, value: object, low: int, high: int) -> int:
    """An integer within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misuse(f"must be a whole number, not {value!r}", field=field)
    if not low <= value <= high:
        raise Misuse(f"must be between {low} and {high}, not {value}", field=field)
    return value


def forks(value: object) -> int:
    """Check the number of sandboxes that `Sandbox.fork` is asked for."""
    return whole("n", value, 1, _MAX_FORKS)


def output_limit(value: object) -> int:
    """A number of bytes per stream."""
    return whole("output_limit_bytes", value, 0, _MAX_OUTPUT)


def check_request(payload: bytes, argv: Sequence[bytes], env: Sequence[bytes], field: str = "command") -> None:
    """Refuse what does not fit into one frame."""
    if len(payload) > _MAX_REQUEST:
        if sum(map(len, env)) > sum(map(len, argv)):
            field = "env"
        raise Misuse(f"a request holds {_MAX_REQUEST} bytes, this one would have {len(payload)}", field=field)


def size_numbers(size: object) -> tuple[int, int]:
    """Rows and columns of a terminal."""
    if not isinstance(size, TerminalSize):
        raise Misuse(f"must be a TerminalSize, not {type(size).__name__}", field="terminal")
    return whole("terminal.rows", size.rows, 1, 65_535), whole("terminal.columns", size.columns, 1, 65_535)
