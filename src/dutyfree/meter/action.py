"""`Action` and `Check`: one step of a workload, and what its result must look like.

Values only. A check is cheap on purpose (it runs between the measured steps) and strict enough that a substrate which
returns the wrong exit code, loses output or runs something else fails the trial.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dutyfree.core.outcome import Outcome

Kind = Literal["inspect", "command", "edit", "test"]
"""inspect: list, search or read files · command: run a program · edit: change a file · test: find out if it works."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Conditions that an outcome must meet."""

    exit_code: int | None = 0
    """None: any, as long as the command ended by itself."""
    equals: bytes | None = None
    """stdout, exactly."""
    contains: bytes | None = None
    """Somewhere in stdout."""

    def fault(self, out: Outcome) -> str | None:
        """Say why the outcome is wrong; None: it is right."""
        if out.ending != "exit":
            return f"ended by {out.ending}, not by itself"
        if self.exit_code is not None and out.exit_code != self.exit_code:
            return f"exit code {out.exit_code}, not {self.exit_code}: {_tail(out.stderr or out.stdout)}"
        if self.equals is not None and out.stdout != self.equals:
            return f"stdout is {_tail(out.stdout)}, not {_tail(self.equals)}"
        if self.contains is not None and self.contains not in out.stdout:
            return f"stdout lacks {self.contains!r}: {_tail(out.stdout)}"
        return None


SUCCESS = Check()


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One command and its observation."""

    kind: Kind
    command: str | tuple[str, ...]
    """Command as in `Sandbox.run`: a string goes to the shell, a tuple is executed directly."""
    stdin: bytes = b""
    check: Check = SUCCESS


def digest(actions: Iterable[Action]) -> str:
    """A short name for exactly this sequence of commands, inputs and checks."""
    text = "\n".join(repr(action) for action in actions)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _tail(data: bytes, limit: int = 200) -> str:
    return repr(data if len(data) <= limit else b"..." + data[-limit:])
