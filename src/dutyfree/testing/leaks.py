"""The machine's resources that a process holds, so that a test can show that it gave everything back.

    before = holdings()
    ...
    assert not leaked(before)

Other processes of the same machine may use dutyfree meanwhile. Only what names this process, a process that was seen
below it, or nobody at all is charged to it; and, where nobody else may be at work, what dead owners left.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["mount", "cgroup", "process", "descriptor", "directory", "thread"]

TOKEN_VARIABLE = "DUTYFREE_LEAK_TOKEN"  # noqa: S105 - it marks processes, and is no secret
"""Set it in `os.environ` before anything is started: orphans that carry our value are ours."""

_OWNER = re.compile(r"dutyfree-(?:[a-z]+-)?(\d+)-")
_MARK = "dutyfree"
_CGROUP_DEPTH = 4
_STEP_S = 0.02
_SHARED = {"dutyfree-cluster", "dutyfree-docker", "/dutyfree/docker", "/dutyfree/podman"}
"""Of the engines that everybody on this machine uses (`make substrates`, `make cluster`): what is theirs names no owner. A
container that stays is found by its name, when the tests of its engine are over."""

_family: set[int] = set()
"""Every process that was seen below this one: what they leave when they die is ours."""


class Holding(NamedTuple):
    """One thing that is held."""

    kind: Kind
    what: str


def holdings(*, orphans: bool = True) -> frozenset[Holding]:
    """Everything this process and its sandboxes hold now; with `orphans` also what any dead owner left."""
    processes = [*_processes()]  # before the rest, which asks for the family
    return frozenset([*processes, *_named(orphans=orphans), *_descriptors(), *_threads()])


def orphans() -> frozenset[Holding]:
    """Mounts, cgroups and directories of dead owners, whoever started them."""
    return frozenset(one for one in _named(orphans=True) if (pid := _owner(one.what)) and not _alive(pid))


def leaked(
    before: frozenset[Holding], patience_s: float = 0.0, *, sockets: bool = True, orphans: bool = True
) -> list[Holding]:
    """Return what is held now and was not then; without `sockets`, which somebody's connections may come and go by.

    With patience, what goes away by itself in that time is not a leak: a killed process is there until the kernel got
    to it.
    """
    deadline = time.monotonic() + patience_s
    while left := sorted(holdings(orphans=orphans) - before):
        left = [one for one in left if sockets or " -> socket:" not in one.what]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_STEP_S)
    return []


def _named(*, orphans: bool) -> Iterator[Holding]:
    """Mounts, cgroups and directories with our mark in their names that are ours."""

    def counts(name: str) -> bool:
        return _ours(name, orphans=orphans)

    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if _MARK in line and counts(line):
            yield Holding("mount", line)
    root = "/sys/fs/cgroup"
    # A walk, which passes over what goes away while it looks: other owners' sandboxes come and go all the time.
    for place, names, _ in os.walk(root):
        yield from (Holding("cgroup", f"{place}/{name}") for name in names if name.startswith(_MARK) and counts(name))
        deep = place.count("/") - root.count("/") >= _CGROUP_DEPTH
        names[:] = [] if deep else [one for one in names if not one.startswith(_MARK)]
    for place in filter(os.path.isdir, {tempfile.gettempdir(), "/dev/shm"}):
        for name in os.listdir(place):
            if name.startswith(_MARK) and counts(name):
                yield Holding("directory", f"{place}/{name}")


def _descriptors() -> Iterator[Holding]:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one that lists the directory
        yield Holding("descriptor", f"{name} -> {target}")


def _threads() -> Iterator[Holding]:
    for thread in threading.enumerate():
        yield Holding("thread", f"{thread.name} {thread.ident}")


def _processes() -> Iterator[Holding]:
    table = {pid: stat for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if (stat := _stat(pid))}
    token = f"{TOKEN_VARIABLE}={os.environ.get(TOKEN_VARIABLE, os.getpid())}\0".encode()
    family = _descendants({pid: parent for pid, (_, parent, _) in table.items()})
    for pid, (name, _, start) in table.items():
        if pid in family or (name.startswith(_MARK) and token in _environment(pid)):
            yield Holding("process", f"{pid} {name} started {start}")


def _descendants(parents: dict[int, int]) -> set[int]:
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    family.remove(os.getpid())
    _family.update(family)
    return family


def _stat(pid: int) -> tuple[str, int, str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return name, int(fields[1]), fields[19]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _ours(name: str, *, orphans: bool) -> bool:
    """It names this process, one that was seen below it, a dead owner if that counts, or nobody that could be asked."""
    pid = _owner(name)
    if pid is None:
        return not any(shared in name for shared in _SHARED)
    return pid in _family | {os.getpid()} or (orphans and not _alive(pid))


def _owner(name: str) -> int | None:
    found = _OWNER.search(name)
    return int(found[1]) if found else None


def _alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
