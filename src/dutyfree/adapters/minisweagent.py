"""mini-swe-agent 2: `environment_class: dutyfree.adapters.minisweagent.Environment`. One sandbox per instance.

The settings stand beside `environment_class` in its configuration. A lost sandbox or a failing substrate is raised: the
run of that instance then ends by that error, and is no submission of the agent's.
"""

from __future__ import annotations

import os
import platform
import subprocess
import weakref
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

from dutyfree.adapters.rollout import exit_status, lease, start_of
from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Outcome

FINISHED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The first line of output by which an agent of theirs submits."""


class Config(BaseModel):
    """What may stand in the `environment` section of mini-swe-agent's configuration."""

    substrate: str = ""
    start: str | None = None
    """The path of a declaration of a start state."""
    image: str | None = None
    cwd: str = ""
    """Where commands run; empty: where the image says."""
    env: dict[str, str] = {}
    forward_env: list[str] = []
    """Variables of this process that commands have too, unless `env` names them."""
    user: str | None = None
    network: str | list[str] | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    timeout: float = 30
    interpreter: list[str] = []
    """As their docker environment's (`["bash", "-lc"]`); empty: bash, not as a login shell."""


class Environment:
    """A sandbox as mini-swe-agent's environment. Freed by `cleanup`, with its last reference, or with the process."""

    def __init__(self, *, config_class: type[Config] = Config, **settings: Any) -> None:
        self.config = config_class(**settings)
        given = self.config.model_dump(exclude={"timeout", "interpreter", "forward_env", "env"})
        forwarded = {name: os.environ[name] for name in self.config.forward_env if name in os.environ}
        start = start_of(**{**given, "cwd": None, "env": {**forwarded, **self.config.env}})
        self.box = lease(start)
        self.cleanup = weakref.finalize(self, self.box.destroy)
        """Free the sandbox. Calling it twice is fine. Their own loop over instances drops the last reference instead."""
        self.cleanup.atexit = False  # what is left then goes with the substrate
        if self.config.cwd:
            self.box.mkdir(self.config.cwd)  # as docker's `-w` does

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run an action's command; raises `Submitted` when it says that the task is finished."""
        command: str = action.get("command", "")
        seconds = timeout or self.config.timeout
        try:
            outcome = self.box.run(
                [*self.config.interpreter, command] if self.config.interpreter else command,
                cwd=cwd or self.config.cwd or None,
                timeout_s=seconds,
                merge_stderr=True,
            )
        except Misuse as error:  # a command that cannot be a command: the agent is told, as it is for a wrong one
            return _failed("", error)
        output = _output(command, seconds, outcome)
        _check_finished(output)
        return output

    def get_template_vars(self, **variables: Any) -> dict[str, Any]:
        """What their prompts may name: the settings, and the machine."""
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), platform.uname()._asdict(), variables)
        return merged

    def serialize(self) -> dict[str, Any]:
        """What a trajectory says of its environment."""
        name = f"{type(self).__module__}.{type(self).__name__}"
        settings = self.config.model_dump(mode="json")
        return {"info": {"config": {"environment": settings, "environment_type": name}}}


def _output(command: str, seconds: float, outcome: Outcome) -> dict[str, Any]:
    text = outcome.text()
    if outcome.ending == "timeout":
        return _failed(text, subprocess.TimeoutExpired(command, seconds))
    if outcome.ending == "oom":
        return _failed(text, MemoryError("the sandbox's memory limit killed the command"))
    return {"output": text, "returncode": exit_status(outcome), "exception_info": ""}


def _failed(output: str, error: Exception) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }


def _check_finished(output: dict[str, Any]) -> None:
    lines = output["output"].lstrip().splitlines(keepends=True)
    if output["returncode"] == 0 and lines and lines[0].strip() == FINISHED:
        submission = "".join(lines[1:])
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})
