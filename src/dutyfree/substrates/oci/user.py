"""Names of users to numbers, which are all that a runtime's exec takes: by the image's own accounts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dutyfree.core.errors import Misuse


def user_ids(user: str, layers: Sequence[Path]) -> str:
    """`uid:gid` for a name, a number, or either with a group. `Misuse` for a name the image does not know."""
    name, colon, group = user.partition(":")
    uid, gid = (name, "0") if name.isdecimal() else _account(name, "passwd", layers, user)
    if name.isdecimal() and not colon:
        gid = _primary_group(name, layers)
    if colon:
        gid = group if group.isdecimal() else _account(group, "group", layers, user)[0]
    return f"{uid}:{gid}"


def _account(name: str, file: str, layers: Sequence[Path], asked: str) -> tuple[str, str]:
    for fields in _lines(file, layers):
        if fields[0] == name and len(fields) > 3:
            return fields[2], fields[3]
    raise Misuse(f"{asked!r} is not known inside", field="user")


def _primary_group(uid: str, layers: Sequence[Path]) -> str:
    return next((fields[3] for fields in _lines("passwd", layers) if fields[2:3] == [uid] and len(fields) > 3), "0")


def _lines(file: str, layers: Sequence[Path]) -> list[list[str]]:
    for layer in layers:
        path = layer / "etc" / file
        if path.is_file() and not path.is_symlink():
            return [line.split(":") for line in path.read_text(errors="replace").splitlines()]
    return []
