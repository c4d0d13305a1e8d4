"""One bundle on disk, and the runtime program's verbs on it: run, exec, delete.

    <home>/<id>/config.json, owner, log      and, where the runtime does not overlay itself, <writes>/<id>/upper, work

A bundle appears by one rename, with its owner's mark inside, so that a sweep never meets half of one.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dutyfree.core.errors import DriverError, SandboxLost
from dutyfree.driver.exec_call import ExecCall, ExecEnd, Sink
from dutyfree.driver.owner import owner_mark
from dutyfree.driver.program import exit_of, run_program, start, stream_program
from dutyfree.tree.beneath import delete_tree

_LOST = (
    "does not exist",
    "not running",
    "cannot exec in a stopped",
    "no such process",
    "stopped",
    "connection refused",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """A container of a runtime program, by its id."""

    driver: str
    name: str
    home: Path
    """Where bundles of this driver lie."""
    runtime: Sequence[str]
    """The program and its global flags."""
    writes: Path | None = None

    @property
    def path(self) -> Path:
        """The bundle's own directory."""
        return self.home / self.name

    def write(self, config: Mapping[str, Any]) -> None:
        """Put it on disk."""
        fresh = self.home / f".{self.name}"
        fresh.mkdir()
        (fresh / "owner").write_text(owner_mark())
        (fresh / "writes").write_text(str(self.writes or ""))
        (fresh / "config.json").write_text(json.dumps(config))
        fresh.rename(self.path)
        if self.writes is not None:
            (self.writes / "upper").mkdir(parents=True)
            (self.writes / "upper").chmod(0o755)
            (self.writes / "work").mkdir()

    async def run(self) -> socket.socket:
        """Start the main process; our end of its stdin and stdout."""
        ours, theirs = socket.socketpair()
        log = self.path / "log"
        argv = [*self._program(log), "run", "--detach", "--bundle", str(self.path), self.name]
        try:
            with theirs:
                process = start(argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL)
            code = await exit_of(process)
        except BaseException:
            ours.close()
            raise
        if code != 0:
            ours.close()
            raise DriverError(f"cannot start it: {said(log) or f'exit code {code}'}", driver=self.driver, step="create")
        return ours

    async def remove(self) -> None:
        """Kill what runs, forget the container, delete the directories; fine if there is nothing."""
        await run_program(*self.runtime, "delete", "--force", self.name)
        await asyncio.to_thread(self._delete)

    async def execute(self, wanted: ExecCall, sink: Sink) -> ExecEnd:
        """An `Execute`: the runtime's own exec."""
        token = os.urandom(6).hex()
        log, pid = self.path / f"log-{token}", self.path / f"pid-{token}"
        flags = [part for name, value in wanted.env.items() for part in ("--env", f"{name}={value}")]
        flags += ["--cwd", wanted.cwd] if wanted.cwd else []
        flags += ["--user", wanted.user] if wanted.user else []
        argv = [*self._program(log), "exec", "--pid-file", str(pid), *flags, self.name, *wanted.argv]
        code = (await stream_program(argv, wanted, sink)).code
        ended_ns = time.time_ns()
        try:
            began_ns = pid.stat().st_mtime_ns
        except FileNotFoundError:
            words = said(log)
            if any(word in words for word in _LOST) and "exec failed" not in words:
                raise SandboxLost(f"its container ended: {words}", driver=self.driver, sandbox=self.name) from None
            return ExecEnd(exit_code=code, refusal=words)
        finally:
            log.unlink(missing_ok=True)
            pid.unlink(missing_ok=True)
        return ExecEnd(exit_code=code, run_ns=max(1, ended_ns - began_ns))

    def _program(self, log: Path) -> list[str]:
        return [*self.runtime, "--log", str(log), "--log-format", "json"]

    def _delete(self) -> None:
        for path in (self.writes, self.path):
            if path is not None:
                with suppress(FileNotFoundError):
                    delete_tree(path)


def said(log: Path) -> str:
    """The runtime's last error, from its log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    for line in reversed(lines):
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and entry.get("level") in ("error", "fatal"):
                return str(entry.get("msg", ""))
    return lines[-1] if lines else ""
