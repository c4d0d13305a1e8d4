"""Replay: a trajectory recorded elsewhere, as a workload.

Reads SWE-agent's `.traj`, mini-swe-agent's trajectory JSON, and a plain JSON list of commands. A recorded command may
have failed where it was recorded, so an action is right when it ends by itself, whatever its exit code. Commands that
only exist inside the recording framework (`submit`, its editors) end with 127 here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dutyfree.core.errors import Misuse
from dutyfree.meter.action import Action, Check
from dutyfree.meter.workload import Workload

TIER = "trace"

_BLOCK = re.compile(r"```(?:mswea_bash_command|bash|sh)\s*\n(.*?)\n```", re.DOTALL)
_ENDED = Check(exit_code=None)


def read_commands(path: Path) -> list[str]:
    """The commands of a recorded trajectory, in order; `Misuse` if it has none or is none."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Misuse(f"{path} cannot be read as JSON: {error}", field="trace") from error
    if isinstance(data, list) and all(isinstance(item, str) for item in data):
        commands = data
    elif isinstance(data, dict) and isinstance(data.get("trajectory"), list):
        commands = [step["action"] for step in data["trajectory"] if isinstance(step, dict) and _text(step, "action")]
    elif isinstance(data, dict) and isinstance(data.get("messages"), list):
        commands = [command for message in data["messages"] for command in _from_message(message)]
    else:
        raise Misuse(
            f"{path} is neither a SWE-agent nor a mini-swe-agent trajectory nor a list of commands", field="trace"
        )
    commands = [command for command in commands if command.strip() and "\0" not in command]
    if not commands:
        raise Misuse(f"{path} holds no commands", field="trace")
    return commands


def workload(path: Path) -> Workload:
    """The recorded commands, each by the shell, in the sandbox's own directory."""
    actions = tuple(Action(kind="command", command=command, check=_ENDED) for command in read_commands(path))
    return Workload(
        tier=TIER,
        actions=lambda steps: actions[:steps],
        description=f"replay of {path.name}: {len(actions)} recorded commands",
        recorded=True,
        steps=(len(actions),),
    )


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


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
    return _BLOCK.findall(_text(message, "content"))


def _from_call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return ""
    return _text(arguments, "command") if isinstance(arguments, dict) else ""
