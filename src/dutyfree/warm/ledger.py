"""Ledger of stages on disk: who builds one now, how the build went, and what it cost.

<home>/stages/<substrate>/<key>.lock      held by the one process that builds it; the kernel frees it at a kill
<home>/stages/<substrate>/<key>.log       of the last build, readable while it runs; also of one that failed
<home>/stages/<substrate>/<key>.json      of a build that succeeded; the state itself is the substrate's to keep
<home>/stages/scratch/<owner>.<random>    checkouts on their way in; swept once their owner is dead
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dutyfree.core import fault
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.core.settings import environment
from dutyfree.driver.owner import is_orphan, owner_mark
from dutyfree.driver.program import poll
from dutyfree.image.root import locate
from dutyfree.warm.log import BuildLog

_FOREVER_S = 10 * 365 * 86_400.0
_SHORTEST_KEY = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One stage that was built."""

    key: str
    parent: str
    """The key of the state it was built on."""
    image: str
    """The image that the chain starts from."""
    name: str
    kind: str
    made_s: float
    """Unix time."""
    took_s: float
    """Seconds from the parent's state to the stage being kept."""
    run_s: float
    """Seconds of that for the recipe itself."""


class Ledger:
    """Ledger of one substrate's stages, below one user's directory."""

    def __init__(self, substrate: str, root: Path | None = None) -> None:
        base = (root or locate(environment(), os.geteuid())) / "stages"
        self._place = base / "".join(char if char.isalnum() or char in "-_." else "-" for char in substrate)
        self._scratch = base / "scratch"

    @asynccontextmanager
    async def building(self, key: str) -> AsyncIterator[None]:
        """One holder per key, in all processes; waits for its turn, and may be cancelled meanwhile."""
        self._prepare()
        fd = os.open(self._path(key, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:

            async def try_lock() -> bool | None:
                with suppress(BlockingIOError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                return None

            await poll(try_lock, deadline_s=_FOREVER_S)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def log(self, key: str) -> Iterator[BuildLog]:
        """A fresh log, instead of that of the build before."""
        self._prepare()
        with self._path(key, "log").open("wb", buffering=0) as file:
            yield BuildLog(file)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory for what is fetched outside; gone at the end, or swept after a kill."""
        self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.sweep()
        place = self._scratch / f"{owner_mark()}@{secrets.token_hex(6)}"
        place.mkdir(mode=0o700)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def sweep(self) -> None:
        """Remove checkouts of dead owners."""
        for place in self._scratch.glob("*@*"):
            if is_orphan(place.name.rpartition("@")[0]):
                shutil.rmtree(place, ignore_errors=True)

    def add(self, entry: Entry) -> None:
        """Write down what was built."""
        fresh = self._path(entry.key, f"json.{secrets.token_hex(4)}")
        fault.at("dutyfree.warm.note", entry.key)
        fresh.write_text(json.dumps(asdict(entry), indent=1) + "\n", encoding="utf-8")
        fresh.replace(self._path(entry.key, "json"))

    def entries(self) -> list[Entry]:
        """List every stage that was built, oldest first. Only the substrate knows which of them it still keeps."""
        found = (_parse(path) for path in self._place.glob("*.json"))
        return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.made_s)

    def entry(self, key: str) -> Entry | None:
        """Find the entry of one stage; None: it was not built here."""
        return _parse(self._path(key, "json"))

    def read_log(self, key: str) -> str:
        """The log of the last build. Hostile text: what was run wrote it."""
        return self._path(self.find(key), "log").read_text(encoding="utf-8", errors="replace")

    def find(self, beginning: str) -> str:
        """The one key that begins so; `Misuse` if there is none, or there are several."""
        stems = {path.stem for path in (*self._place.glob("*.json"), *self._place.glob("*.log"))}
        matches = [key for key in stems if len(beginning) >= _SHORTEST_KEY and key.startswith(beginning)]
        if len(matches) != 1:
            what = f"means {len(matches)} stages" if matches else "is no stage that was built here"
            raise Misuse(f"{beginning!r} {what}; see: dutyfree stage list", field="key")
        return matches[0]

    def forget(self, key: str) -> None:
        """Remove what was written down."""
        for suffix in ("json", "log", "lock"):
            self._path(key, suffix).unlink(missing_ok=True)

    def _path(self, key: str, suffix: str) -> Path:
        return self._place / f"{key}.{suffix}"

    def _prepare(self) -> None:
        try:
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"stages cannot be kept in {self._place}: {error.strerror}",
                enable="export DUTYFREE_HOME=<a directory of yours>",
            ) from error


def _parse(path: Path) -> Entry | None:
    """Read an entry; None: there is none, or it is corrupt. It only says what the stage cost."""
    try:
        return Entry(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def unix_now() -> float:
    """Time of day for people; durations are taken elsewhere."""
    return time.time()
