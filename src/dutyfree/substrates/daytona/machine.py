"""One sandbox at Daytona's: `process.exec` per action, which answers once, with both outputs as one text."""

from __future__ import annotations

import math
import shlex

from daytona import AsyncSandbox

from dutyfree.core.errors import SandboxLost, Unsupported
from dutyfree.driver.backend import ImageDefaults
from dutyfree.driver.exec_call import STDOUT, ExecCall, ExecEnd, Sink
from dutyfree.substrates.hosted.boundary import Boundary
from dutyfree.substrates.hosted.text import Reading, prepare

EXEC_S = 86_400
"""The vendor's own deadline of a command, which it wants to have. The caller's is kept by the sandbox's side of ours."""

END_S = 120.0

_ROOT = ("0", "root")
_KILLED = 137
_NOT_STARTED = (126, 127)

_SHELL = 's={script}\ncommand -v bash >/dev/null && exec bash -c "$s"\nexec sh -c "$s"\n'
"""The vendor feeds it to zsh, bash or sh, whichever is there; ours is written for the latter two, and bash tells times."""


def shell_line(script: str) -> str:
    """A script for bash or sh, as the input of whichever shell the vendor takes."""
    return _SHELL.format(script=shlex.quote(script))


def minutes(seconds: float) -> int:
    """As the vendor's clocks count."""
    return max(1, math.ceil(seconds / 60))


class DaytonaMachine:
    """A `hosted.vendor.Machine`."""

    defaults = ImageDefaults()
    """The vendor's agent starts what it runs in the image's own place, or at home."""

    def __init__(self, sandbox: AsyncSandbox, boundary: Boundary) -> None:
        self._sandbox = sandbox
        self._boundary = boundary

    async def execute(self, wanted: ExecCall, sink: Sink) -> ExecEnd:
        """By one call, and one more for each piece of an input that is large."""
        self._check_user(wanted.user)
        script = await prepare(wanted, self._put, shared=True)
        answer = await self._boundary.cross(self._sandbox.process.exec(shell_line(script), timeout=EXEC_S))
        reading = Reading(sink, driver="daytona", shared=True)
        await reading.take(STDOUT, answer.result)
        if reading.ended is not None:
            return reading.ended
        if answer.exit_code in _NOT_STARTED and answer.result:
            return ExecEnd(exit_code=answer.exit_code, refusal=answer.result)
        return ExecEnd(exit_code=_KILLED)  # the script itself was: by whoever is short of memory, or by another command

    async def extend(self, ttl_s: float) -> None:
        """Set the clock of its life, and that of its idleness back."""
        await self._boundary.cross(self._sandbox.set_ttl(minutes(ttl_s)))
        await self._boundary.cross(self._sandbox.refresh_activity())

    async def end(self) -> None:
        """Delete it, and wait until it is destroyed."""
        try:
            await self._boundary.cross(self._sandbox.delete(END_S, wait=True))
        except SandboxLost:
            return

    async def _put(self, path: str, data: bytes) -> None:
        await self._boundary.cross(self._sandbox.fs.upload_file(data, path))

    def _check_user(self, user: str | None) -> None:
        """The vendor runs everything as the sandbox's one user."""
        own = self._sandbox.user
        if user is None or user == own or (user in _ROOT and own in _ROOT):
            return
        raise Unsupported(f"another user than the sandbox's own {own!r} is not offered", driver="daytona")
