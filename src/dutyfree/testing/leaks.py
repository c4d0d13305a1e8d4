"""What a process holds of the machine, so that a test can show that it gave everything back.

    before = holdings()
    ...
    assert not leaked(before)

Other processes of the same machine may use dutyfree meanwhile: what names a live owner that is not ours is not counted.
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
_SHARED = {"dutyfree-cluster"}
"""The machine's own: `make cluster`."""


class Holding(NamedTuple):
    """One thing that is held."""

    kind: Kind
    what: str


def holdings() -> frozenset[Holding]:
    """Everything this process and its sandboxes hold now."""
    return frozenset([*_mounts(), *_cgroups(), *_processes(), *_descriptors(), *_directories(), *_threads()])


def leaked(before: frozenset[Holding], patience_s: float = 0.0, *, sockets: bool = True) -> list[Holding]:
    """What is held now and was not then; without `sockets`, which somebody's connections may come and go by.

    With patience, what goes away by itself in that time is not a leak: a killed process is there until the kernel got to it.
    """
    deadline = time.monotonic() + patience_s
    while (left := _added(before, sockets=sockets)) and time.monotonic() < deadline:
        time.sleep(_STEP_S)
    return left


def _added(before: frozenset[Holding], *, sockets: bool) -> list[Holding]:
    return sorted(one for one in holdings() - before if sockets or " -> socket:" not in one.what)


def _mounts() -> Iterator[Holding]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if _MARK in line:
            yield Holding("mount", line)


def _cgroups() -> Iterator[Holding]:
    root = "/sys/fs/cgroup"
    # A walk, which passes over what goes away while it looks: other owners' sandboxes come and go all the time.
    for place, names, _ in os.walk(root):
        for name in [one for one in names if one.startswith(_MARK)]:
            if _ours(name):
                yield Holding("cgroup", f"{place}/{name}")
        deep = place.count("/") - root.count("/") >= _CGROUP_DEPTH
        names[:] = [] if deep else [one for one in names if not one.startswith(_MARK)]


def _directories() -> Iterator[Holding]:
    for place in filter(os.path.isdir, {tempfile.gettempdir(), "/dev/shm"}):
        for name in os.listdir(place):
            if name.startswith(_MARK) and _ours(name):
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
    return family - {os.getpid()}


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


def _ours(name: str) -> bool:
    """Unless it names a live owner that is neither this process nor below it."""
    owner = _OWNER.match(name)
    if owner is None:
        return name not in _SHARED
    pid = int(owner[1])
    if pid == os.getpid() or not os.path.exists(f"/proc/{pid}"):
        return True
    parent: int | None = pid
    while parent:
        if parent == os.getpid():
            return True
        stat = _stat(parent)
        parent = stat[1] if stat else None
    return False
