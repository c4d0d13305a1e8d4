"""Remove what a killed client leaves half done: an unplaced bundle, a runtime program that still starts it."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dutyfree.tree.beneath import delete_tree

START_S = 60.0
"""A runtime that takes longer to start a bundle is not waited for."""

_UNFINISHED = re.compile(r"\.dutyfree-[a-z]+-(\d+)-")


def remove_unfinished(home: Path) -> None:
    """Delete bundles that were never put in place, of processes that are gone."""
    for path in home.glob(".dutyfree-*"):
        maker = _UNFINISHED.match(path.name)
        if maker is not None and not Path(f"/proc/{maker[1]}").exists():
            with suppress(FileNotFoundError):
                delete_tree(path)


def await_start(bundle: Path) -> None:
    """Wait for a runtime program that is starting this bundle. Blocks."""
    end_s = time.monotonic() + START_S
    for fd in list(_starting(os.fsencode(bundle))):
        try:
            select.select([fd], [], [], max(0.0, end_s - time.monotonic()))
        finally:
            os.close(fd)


def _starting(bundle: bytes) -> Iterator[int]:
    """Descriptors of the processes whose command is `run --detach` of that bundle."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            if bundle in words and b"run" in words and b"--detach" in words:
                yield os.pidfd_open(int(entry.name))
