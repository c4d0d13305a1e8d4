"""Names of users to numbers, which are all that a runtime's exec takes: by the accounts of an image, or of a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dutyfree.core.errors import Misuse
from dutyfree.driver.exec_call import CappedStreams, ExecCall, ExecEnd, Execute, Sink

_MOST_ACCOUNTS = 1 << 20


Lines = Callable[[str], Sequence[Sequence[str]]]
"""The fields of each line of `passwd` or `group`."""


def user_ids(user: str, lines: Lines) -> str:
    """`uid:gid` for a name, a number, or either with a group. `Misuse` for a name the accounts do not have."""
    name, colon, group = user.partition(":")
    uid, gid = (name, "0") if name.isdecimal() else _account(name, lines("passwd"), user)
    if name.isdecimal() and not colon:
        gid = _primary_group(name, lines("passwd"))
    if colon:
        gid = group if group.isdecimal() else _account(group, lines("group"), user)[0]
    return f"{uid}:{gid}"


def parsed(text: str) -> list[list[str]]:
    """The text of an account file as `Lines` gives it."""
    return [line.split(":") for line in text.splitlines()]


def of_layers(layers: Sequence[Path]) -> Lines:
    """The accounts that an image came with."""

    def lines(file: str) -> list[list[str]]:
        for layer in layers:
            path = layer / "etc" / file
            if path.is_file() and not path.is_symlink():
                return parsed(path.read_text(errors="replace"))
        return []

    return lines


def numbered(execute: Execute, layers: Sequence[Path]) -> Execute:
    """The same exec call for users by name. Those that the image does not know may have been added inside."""

    async def by_number(wanted: ExecCall, sink: Sink) -> ExecEnd:
        user = await ids(wanted.user) if wanted.user else None
        return await execute(wanted._replace(user=user), sink)

    async def ids(user: str) -> str:
        try:
            return user_ids(user, of_layers(layers))
        except Misuse:
            said = {file: await accounts(file) for file in ("passwd", "group")}
            return user_ids(user, said.__getitem__)

    async def accounts(file: str) -> list[list[str]]:
        kept = CappedStreams(_MOST_ACCOUNTS)
        await execute(ExecCall(argv=["cat", f"/etc/{file}"]), kept)
        return parsed(kept.stdout.kept().decode(errors="replace"))

    return by_number


def _account(name: str, lines: Sequence[Sequence[str]], asked: str) -> tuple[str, str]:
    for fields in lines:
        if fields[0] == name and len(fields) > 3:
            return fields[2], fields[3]
    raise Misuse(f"{asked!r} is not known inside", field="user")


def _primary_group(uid: str, lines: Sequence[Sequence[str]]) -> str:
    return next((fields[3] for fields in lines if list(fields[2:3]) == [uid] and len(fields) > 3), "0")
