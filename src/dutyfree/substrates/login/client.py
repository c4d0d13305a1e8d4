"""OpenSSH's own client as a way to reach one machine: the user's configuration, keys and known hosts hold as they are.

The first connection stays open as master for those that follow; it ends by itself shortly after the last of them, so
nothing is left when we are killed.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.core.keyword import check_names
from dutyfree.driver.program import run_program, start

PERSIST_S = 5
"""How long the master outlives its last user."""

_OPTIONS = ("host", "port", "identity", "config", "program")
_CANNOT_CONNECT = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """Output and exit code of a remote command."""

    code: int
    stdout: str
    stderr: str


@dataclass(kw_only=True, slots=True)
class Client:
    """One machine, and the directory with the master's socket; `close` gives both up."""

    host: str
    program: str = "ssh"
    flags: list[str] = field(default_factory=list)
    directory: Path

    @classmethod
    def open(cls, options: Mapping[str, str]) -> Client:
        """Check the options; nothing is connected yet."""
        check_names(options, _OPTIONS, driver="ssh")
        host = options.get("host", "")
        if not host or host.startswith("-"):
            raise Misuse(
                f"must be a host, as ssh takes it (ssh?host=user@machine), not {host!r}", field="host", driver="ssh"
            )
        program = shutil.which(options.get("program", "ssh"))
        if program is None:
            raise Unavailable("there is no ssh", enable="apt-get install -y openssh-client", driver="ssh")
        # Short: the path of a unix socket ends at 107 bytes, and ssh appends 17 to it while it connects.
        directory = Path(tempfile.mkdtemp(prefix=f"dutyfree-ssh-{os.getpid()}-", dir="/tmp"))
        flags = ["-o", "BatchMode=yes", "-o", "ControlMaster=auto", "-o", f"ControlPath={directory}/m"]
        flags += ["-o", f"ControlPersist={PERSIST_S}", "-o", "ServerAliveInterval=15", "-T"]
        flags += ["-p", options["port"]] if "port" in options else []
        flags += ["-i", options["identity"]] if "identity" in options else []
        flags += ["-F", options["config"]] if "config" in options else []
        return cls(host=host, program=program, flags=flags, directory=directory)

    async def say(self, script: str, stdin: bytes = b"") -> Said:
        """Run a script by the remote user's `sh` to its end; `Unavailable` if there is no connection."""
        process = await asyncio.create_subprocess_exec(
            *self._argv(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            stdout, stderr = await process.communicate(stdin)
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        said = Said(
            code=process.returncode or 0,
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace").strip(),
        )
        if said.code == _CANNOT_CONNECT:
            raise Unavailable(
                f"{self.host} cannot be reached: {said.stderr or 'ssh says nothing'}",
                enable=f"ssh {self.host} true",
                driver="ssh",
                step="connect",
            )
        return said

    def stream(self, script: str, stderr: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start a script and hand back our end of its stdin and stdout."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = start(self._argv(script), stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=stderr)
        except BaseException:
            ours.close()
            raise
        return process, ours

    async def close(self) -> None:
        """End the master and remove its directory. Calling it twice is fine."""
        if not self.directory.exists():
            return
        await run_program(self.program, *self.flags, "-O", "exit", self.host)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _argv(self, script: str) -> list[str]:
        # One word: ssh joins its arguments with spaces, and the remote user's own shell, whatever it is, splits them.
        return [self.program, *self.flags, "--", self.host, f"exec sh -c {shlex.quote(script)}"]
