"""Inspect: `sandbox="dutyfree"`, or `sandbox=("dutyfree", "start.toml")`. One sandbox per sample.

A configuration is a declaration of a start state (`.toml`, `.json`), a `Settings` value, or a compose file as far as one
container goes. What a compose file asks for beyond that is refused by name, never left out silently.
"""

from __future__ import annotations

from typing import Any, Literal, overload

from inspect_ai.util import (
    ComposeConfig,
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    parse_compose_yaml,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from dutyfree.adapters.compose import composed
from dutyfree.adapters.rollout import Rollout, Start, begin, exit_status, failing_as, start_of
from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Outcome

POLL_S = 0.05
"""Inspect asks for the output of long commands this often; its own 2 s are for sandboxes that are slow to ask."""
NOT_EXECUTABLE, NOT_STARTED = 126, 127


class Settings(BaseModel):
    """The configuration as a value: `SandboxEnvironmentSpec("dutyfree", Settings(image="bench"))`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    substrate: str = ""
    start: str | None = None
    """The path of a declaration."""
    image: str | None = None
    cwd: str | None = None
    user: str | None = None
    env: dict[str, str] | None = None
    network: str | list[str] | None = None
    cpus: float | None = None
    memory_bytes: int | None = None

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # Inspect keys a task's set-up by its configuration


@sandboxenv(name="dutyfree")
class Environment(SandboxEnvironment):
    """A rollout as Inspect's sandbox environment."""

    def __init__(self, rollout: Rollout) -> None:
        super().__init__()
        self.rollout = rollout

    @classmethod
    def config_files(cls) -> list[str]:
        """Files beside a task that configure it unasked."""
        return ["dutyfree.toml", "compose.yaml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Read a `Settings` that Inspect has written down."""
        return Settings(**config)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Lease the sample's sandbox."""
        del task_name, metadata
        with failing_as(SandboxUnavailableError):
            return {"default": cls(await begin(_start(config)))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Free it, whatever became of the sample."""
        del task_name, config, interrupted
        for environment in environments.values():
            await environment.as_type(Environment).rollout.end()

    def default_polling_interval(self) -> float:
        """How often Inspect asks for what a long command has said."""
        return POLL_S

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - Inspect's own name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command. A deadline here ends the whole process tree, so that nothing needs to be tried again."""
        del timeout_retry, concurrency
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        if user is not None and not self.rollout.box.capabilities.users:
            raise SandboxUserUnsupportedError("commands run as one user here: capabilities.users is False")
        place = await self.rollout.path(cwd) if cwd is not None else None
        try:
            with failing_as(SandboxUnavailableError):
                outcome = await self.rollout.run(
                    cmd,
                    stdin=input or b"",
                    cwd=place,
                    env=env,
                    user=user,
                    timeout_s=timeout,
                    output_limit_bytes=limit,
                )
        except Misuse as error:
            if error.field not in ("user", "cwd"):
                raise
            return ExecResult(False, NOT_STARTED, "", f"{error}\n")
        return _result(cmd, outcome, timeout)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, with the rights of the sandbox's default user."""
        data = contents.encode() if isinstance(contents, str) else contents
        with failing_as(SandboxUnavailableError):
            await self.rollout.write(await self.rollout.path(file), data)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file, with the rights of the sandbox's default user."""
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with failing_as(SandboxUnavailableError):
            data = await self.rollout.read(await self.rollout.path(file), length=most + 1)
        if len(data) > most:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data


def _result(cmd: list[str], outcome: Outcome, timeout: int | None) -> ExecResult[str]:
    stdout, stderr = (stream.decode(errors="replace") for stream in (outcome.stdout, outcome.stderr))
    if outcome.ending == "timeout":
        error = TimeoutError(f"Command timed out after {timeout} seconds")
        error.truncated_output = stdout + stderr  # type: ignore[attr-defined]
        raise error
    if outcome.truncated:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout + stderr)
    if outcome.exit_code == NOT_EXECUTABLE and stderr == f"{cmd[0]}: Permission denied\n":
        raise PermissionError(stderr.strip())
    return ExecResult(outcome.ok, exit_status(outcome), stdout, stderr)


def _start(config: BaseModel | str | None) -> Start:
    if isinstance(config, str):
        if config.endswith((".toml", ".json")):
            return start_of(start=config)
        if not config.endswith((".yaml", ".yml")):
            raise Misuse(f"{config}: build it first: dutyfree image build; then name the image", field="sandbox")
        config = parse_compose_yaml(config)
    if isinstance(config, ComposeConfig):
        return start_of(**composed(config.model_dump(by_alias=True, exclude_none=True)))
    return start_of(**(config.model_dump() if isinstance(config, BaseModel) else {}))
