"""Replay: a trajectory recorded elsewhere, as a workload.

Reads SWE-agent's `.traj`, mini-swe-agent's trajectories (whole, or the bare list of messages), and a plain JSON list
of commands. A recorded command may have failed where it was recorded, so any exit code is right for the trial. Records
keep the exit codes, and the report compares them with those of the recording: commands that fail otherwise than they
did have not done their work, and their times say nothing.

A replay needs the recording's surroundings: image, directory and shell. What the file does not say must be given.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dutyfree.core.errors import Misuse
from dutyfree.meter.action import Action, Check
from dutyfree.meter.workload import Surroundings, Workload

TIER = "trace"

_BLOCK = re.compile(r"```(?:mswea_bash_command|bash|sh)\s*\n(.*?)\n```", re.DOTALL)
_RETURNED = re.compile(r"<returncode>\s*(-?\d+)\s*</returncode>")
_ENDED = Check(exit_code=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """A file's account of a trajectory."""

    commands: tuple[str, ...]
    exit_codes: tuple[int | None, ...]
    """Exit code of each command where it was recorded; None: the file does not say."""
    image: str | None = None
    cwd: str | None = None
    shell: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def read(path: Path) -> Recording:
    """The recorded trajectory; `Misuse` if the file is none, or holds no command."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Misuse(f"{path} cannot be read as JSON: {error}", field="trace") from error
    found = _recording(data)
    if found is None:
        raise Misuse(
            f"{path} is neither a SWE-agent nor a mini-swe-agent trajectory nor a list of commands", field="trace"
        )
    kept = [
        (command, code)
        for command, code in zip(found.commands, found.exit_codes, strict=True)
        if command.strip() and "\0" not in command
    ]
    if not kept:
        raise Misuse(f"{path} holds no commands", field="trace")
    commands, codes = zip(*kept, strict=True)
    return replace(found, commands=commands, exit_codes=codes)


def workload(path: Path, *, given: Surroundings | None = None, anywhere: bool = False) -> Workload:
    """The recorded commands by the recording's shell, in the recording's directory.

    `given` overrides what the recording says. Where image, directory or shell stay unknown the replay is refused,
    unless `anywhere` is set: it is then marked as one outside of its own surroundings.
    """
    found = read(path)
    wanted = _surroundings(found, given or Surroundings())
    if wanted.missing and not anywhere:
        raise Misuse(
            f"{path} does not say its {' and '.join(wanted.missing)}, without which its commands fail and their times "
            "mislead; give --trace-image, --trace-cwd and --trace-shell (and --trace-repo where the image has no "
            "repository), or --trace-anywhere for a replay that is marked as such",
            field="trace",
        )
    actions = tuple(
        Action(kind="command", command=(*wanted.shell, command) if wanted.shell else command, check=_ENDED)
        for command in found.commands
    )
    return Workload(
        tier=TIER,
        actions=lambda steps: actions[:steps],
        description=f"replay of {path.name}: {len(actions)} recorded commands",
        env=found.env,
        recorded=True,
        surroundings=wanted,
        exit_codes=found.exit_codes,
        steps=(len(actions),),
    )


def _surroundings(found: Recording, given: Surroundings) -> Surroundings:
    return Surroundings(
        image=given.image or found.image,
        cwd=given.cwd or found.cwd,
        shell=given.shell or found.shell,
        repository=given.repository,
    )


def _recording(data: Any) -> Recording | None:
    if isinstance(data, list) and all(isinstance(item, str) for item in data):
        return Recording(commands=tuple(data), exit_codes=(None,) * len(data))
    if isinstance(data, list) and all(isinstance(item, dict) and "role" in item for item in data):
        return _conversation(data, {})
    if isinstance(data, dict) and isinstance(data.get("trajectory"), list):
        return _swe_agent(data)
    if isinstance(data, dict) and isinstance(data.get("messages"), list):
        return _conversation(data["messages"], _map(_map(_map(data, "info"), "config"), "environment"))
    return None


def _swe_agent(data: dict[str, Any]) -> Recording:
    steps = [step for step in data["trajectory"] if isinstance(step, dict) and _text(step, "action")]
    try:
        environment = _map(json.loads(_text(data, "replay_config") or "{}"), "env")
    except ValueError:
        environment = {}
    repository = _text(_map(environment, "repo"), "repo_name")
    return Recording(
        commands=tuple(step["action"] for step in steps),
        exit_codes=(None,) * len(steps),
        image=_text(_map(environment, "deployment"), "image") or None,
        cwd=f"/{repository}" if repository else None,
        shell=("bash", "-c") if environment else (),
    )


def _conversation(messages: Sequence[Any], environment: Mapping[str, Any]) -> Recording:
    """mini-swe-agent: each command, and the exit code in the observations up to the next answer."""
    commands: list[str] = []
    codes: list[int | None] = []
    asked = 0
    for message in messages:
        made = _from_message(message)
        if made:
            commands += made
            codes += [None] * len(made)
            asked = len(codes) - len(made)
            continue
        for code in _returned(message):
            if asked < len(codes):
                codes[asked] = code
                asked += 1
    interpreter = environment.get("interpreter")
    words = interpreter if isinstance(interpreter, list) and all(isinstance(word, str) for word in interpreter) else []
    return Recording(
        commands=tuple(commands),
        exit_codes=tuple(codes),
        image=_text(environment, "image") or None,
        cwd=_text(environment, "cwd") or None,
        shell=tuple(words) or (("bash", "-lc") if environment else ()),
        env={key: value for key, value in _map(environment, "env").items() if isinstance(value, str)},
    )


def _returned(message: Any) -> Iterator[int]:
    """The exit codes that an observation tells; the command's output may hold anything, so only the first counts."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "tool"):
        return
    code = _map(message, "extra").get("returncode")
    if isinstance(code, int) and not isinstance(code, bool):
        yield code
    elif match := _RETURNED.search(_content(message)):
        yield int(match[1])


def shell_words(text: str) -> tuple[str, ...]:
    """`--trace-shell`: the words before the command."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise Misuse(f"must be a shell and its options, as in 'bash -c': {error}", field="--trace-shell") from error
    if not words:
        raise Misuse("must be a shell and its options, as in 'bash -c'", field="--trace-shell")
    return words


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _map(data: Any, key: str) -> dict[str, Any]:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


def _content(message: dict[str, Any]) -> str:
    """A message's text: a string, or a list of parts as some models' APIs have it."""
    parts = message.get("content")
    if isinstance(parts, list):
        return "\n".join(_text(part, "text") for part in parts if isinstance(part, dict))
    return _text(message, "content")


def _from_message(message: Any) -> list[str]:
    """One message's commands: mini-swe-agent has kept them in three places over time."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return []
    extra = message.get("extra")
    actions = extra.get("actions") if isinstance(extra, dict) else None
    if isinstance(actions, list) and actions:
        return [text for item in actions if (text := item if isinstance(item, str) else _text(item, "command"))]
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return [text for call in calls if (text := _from_call(call))]
    return _BLOCK.findall(_content(message))


def _from_call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return ""
    return _text(arguments, "command") if isinstance(arguments, dict) else ""
