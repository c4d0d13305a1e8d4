"""SWE-ReX: `SWEEnv(deployment=dutyfree.adapters.swerex.Deployment(image="bench"))`, or `Runtime` behind its own server.

A session is a persistent shell of the sandbox and no terminal: interactive programs (`is_interactive_command`) are refused.
"""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import DeploymentHook
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    DeploymentStartupError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime import abstract as rex

from dutyfree.adapters.rollout import Rollout, begin, exit_status, failing_as, start_of
from dutyfree.core.contract import Shell
from dutyfree.core.errors import Unsupported

_PROMPT = "SHELLPS1PREFIX"
"""What their own sessions say has been met when a command is over."""


class Runtime(rex.AbstractRuntime):
    """One sandbox, leased at the first call; after `close` the next call leases another."""

    def __init__(self, **settings: Any) -> None:
        self.logger = logging.getLogger("dutyfree.swerex")
        self._start = start_of(**settings)
        self._rollout: Rollout | None = None
        self._sessions: dict[str, Shell] = {}

    async def start(self) -> Rollout:
        """Lease the sandbox unless it is there."""
        if self._rollout is None:
            with failing_as(DeploymentStartupError):
                self._rollout = await begin(self._start)
        return self._rollout

    async def is_alive(self, *, timeout: float | None = None) -> rex.IsAliveResponse:
        """Say whether the sandbox lives."""
        del timeout
        alive = (await self.start()).box.alive
        return rex.IsAliveResponse(is_alive=alive, message="" if alive else "the sandbox is gone")

    async def create_session(self, request: rex.CreateBashSessionRequest) -> rex.CreateBashSessionResponse:
        """Open a persistent shell."""
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        rollout = await self.start()
        shell = self._sessions[request.session] = await rollout.reach(rollout.twin.shell())
        output = ""
        for path in request.startup_source:
            output += (await rollout.reach(shell.run(f"source {path} 2>&1", timeout_s=request.startup_timeout))).text()
        return rex.CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: rex.BashAction | rex.BashInterruptAction) -> rex.BashObservation:
        """Run a command in a shell, or interrupt the one that runs."""
        shell, rollout = self._session(action.session), await self.start()
        if isinstance(action, rex.BashInterruptAction):
            await rollout.reach(shell.interrupt())
            return rex.BashObservation(output="", exit_code=0, expect_string=_PROMPT)
        if action.is_interactive_command or action.is_interactive_quit:
            raise Unsupported("interactive programs need a terminal, and a session here is a shell without one")
        await self._check_syntax(rollout, action.command)
        outcome = await rollout.reach(shell.run(_merged(action.command), timeout_s=action.timeout))
        if outcome.ending == "timeout":
            self._too_late(action.timeout, action.command)
        code = exit_status(outcome)
        if action.check == "raise":
            _check_exit(action.command, code, action.error_msg, outcome.text())
        return rex.BashObservation(
            output=outcome.text(), exit_code=None if action.check == "ignore" else code, expect_string=_PROMPT
        )

    async def close_session(self, request: rex.CloseBashSessionRequest) -> rex.CloseBashSessionResponse:
        """End a shell and what it left running."""
        shell, rollout = self._session(request.session), await self.start()
        del self._sessions[request.session]
        await rollout.reach(shell.close())
        return rex.CloseBashSessionResponse()

    async def execute(self, command: rex.Command) -> rex.CommandResponse:
        """Run a command beside all sessions."""
        words = command.command
        outcome = await (await self.start()).run(
            words if command.shell or not isinstance(words, str) else [words],
            timeout_s=command.timeout,
            env=command.env,
            cwd=command.cwd,
            merge_stderr=command.merge_output_streams,
        )
        if outcome.ending == "timeout":
            self._too_late(command.timeout, str(words))
        code = exit_status(outcome)
        stdout, stderr = (stream.decode(errors="backslashreplace") for stream in (outcome.stdout, outcome.stderr))
        if command.check:
            _check_exit(words, code, command.error_msg, stdout + stderr)
        return rex.CommandResponse(stdout=stdout, stderr=stderr, exit_code=code)

    async def read_file(self, request: rex.ReadFileRequest) -> rex.ReadFileResponse:
        """Read a file as text."""
        rollout = await self.start()
        data = await rollout.read(await rollout.path(request.path))
        return rex.ReadFileResponse(content=data.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: rex.WriteFileRequest) -> rex.WriteFileResponse:
        """Write a file, with the directories above it."""
        rollout = await self.start()
        await rollout.write(await rollout.path(request.path), request.content.encode())
        return rex.WriteFileResponse()

    async def upload(self, request: rex.UploadRequest) -> rex.UploadResponse:
        """Copy a local file or tree in."""
        rollout = await self.start()
        await rollout.upload(request.source_path, await rollout.path(request.target_path))
        return rex.UploadResponse()

    async def close(self) -> rex.CloseResponse:
        """Free the sandbox."""
        self._sessions.clear()
        if self._rollout is not None:
            rollout, self._rollout = self._rollout, None
            await rollout.end()
        return rex.CloseResponse()

    def _session(self, name: str) -> Shell:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]

    def _too_late(self, timeout: float | None, command: str) -> NoReturn:
        raise CommandTimeoutError(f"timeout after {timeout} seconds while running command {command!r}")

    async def _check_syntax(self, rollout: Rollout, command: str) -> None:
        seen = await rollout.run(["bash", "-n"], stdin=command.encode())
        if not seen.ok:
            stdout, stderr = seen.text(), seen.stderr.decode(errors="replace")
            said = {"bash_stdout": stdout, "bash_stderr": stderr}
            raise BashIncorrectSyntaxError(f"Error while checking bash command {command!r}:\n{stderr}", extra_info=said)


class Deployment(AbstractDeployment):
    """A runtime with a start and an end. Settings are those of `start_of`."""

    def __init__(self, **settings: Any) -> None:
        self.logger = logging.getLogger("dutyfree.swerex")
        self._settings = settings
        self._runtime: Runtime | None = None

    def add_hook(self, hook: DeploymentHook) -> None:
        """Take a hook. There is nothing to tell one: a sandbox starts in one step."""

    async def is_alive(self, *, timeout: float | None = None) -> rex.IsAliveResponse:
        """Say whether the sandbox lives."""
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Lease the sandbox."""
        self._runtime = Runtime(**self._settings)
        await self._runtime.start()

    async def stop(self) -> None:
        """Free it. Calling it twice is fine."""
        if self._runtime is not None:
            runtime, self._runtime = self._runtime, None
            await runtime.close()

    @property
    def runtime(self) -> Runtime:
        """The runtime, once it was started."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime


def _check_exit(command: str | list[str], code: int, message: str, output: str) -> None:
    if code:
        said = f"rex.Command {command!r} failed with exit code {code}. Here is the output:\n{output!r}"
        raise NonZeroExitCodeError(f"{message}: {said}" if message else said)


def _merged(command: str) -> str:
    """A command in the shell itself, its errors among its output; one that says nothing is no group of commands."""
    said = [line for line in command.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return f"{{ {command}\n}} 2>&1" if said else ":"
