"""Every error dutyfree raises about its own machinery, and nothing else.

    DutyfreeError            the machinery failed; says which driver, step and sandbox
    ├── Misuse               the caller asked for something that makes no sense; names the field
    ├── Unsupported          the substrate declares that it does not offer this
    ├── Unavailable          the substrate cannot run here now; `enable` is the command that would change that
    ├── Saturated            no capacity now; `retry_after_s` says when to ask again
    ├── SandboxLost          the sandbox died under the caller
    ├── StageFailed          a stage's recipe did not succeed; `log_tail` is the end of its build log
    ├── CommandFailed        a command did not end with exit code 0, and its caller asked for that (`Outcome.check`)
    └── DriverError          the substrate failed in a way that is none of the above

How a *command* ends is never an exception: it is an `Outcome`. What the sandbox's own filesystem answers to
`read`, `write`, `list` … is raised as Python's own `OSError` subclasses (`FileNotFoundError`, `PermissionError` …),
since callers already know how to handle those.
"""

from __future__ import annotations

import copy
from typing import Any, Literal, Self

from dutyfree.core.text import printable

Step = Literal[
    "import", "connect", "image", "create", "ready", "exec", "file", "transfer", "forward", "snapshot", "fork", "reset",
    "destroy", "build",
]  # fmt: skip
"""The step of a sandbox's life that failed."""


class Violation(Exception):
    """Bytes that somebody else wrote break their format or protocol; the message says how.

    Never reaches a caller: who reads such bytes makes one of the errors below of it.
    """


class DutyfreeError(Exception):
    """The machinery failed. Every part of the message that is known is an attribute too."""

    def __init__(
        self, message: str, *, driver: str | None = None, step: Step | None = None, sandbox: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.driver = driver
        self.step = step
        self.sandbox = sandbox

    def located(self, *, driver: str | None = None, step: Step | None = None, sandbox: str | None = None) -> Self:
        """Return a copy in which the fields that were unknown are filled; the innermost driver keeps its name."""
        found = copy.copy(self)
        found.driver = self.driver or driver
        found.step = self.step or step
        found.sandbox = self.sandbox or sandbox
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # Python's own way calls the class with the message alone, which is not what every subclass takes.
        return _renewed, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        where = ", ".join(
            f"{name} {value}"
            for name, value in (("driver", self.driver), ("step", self.step), ("sandbox", self.sandbox))
            if value
        )
        # Names in images, registries and sandboxes come from others, and errors end in terminals and logs.
        return printable(f"{self.message} ({where})" if where else self.message, keep="\n\t")


class Misuse(DutyfreeError):
    """The call itself is wrong. `field` names the argument at fault."""

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        driver: str | None = None,
        step: Step | None = None,
        sandbox: str | None = None,
    ) -> None:
        super().__init__(f"{field}: {message}" if field else message, driver=driver, step=step, sandbox=sandbox)
        self.field = field


class Unsupported(DutyfreeError):
    """The substrate does not offer this, and says so in its `capabilities`."""


class Unavailable(DutyfreeError):
    """The substrate cannot run on this machine now. `enable` is the exact command that would change that."""

    def __init__(
        self,
        message: str,
        *,
        enable: str | None = None,
        driver: str | None = None,
        step: Step | None = None,
        sandbox: str | None = None,
    ) -> None:
        super().__init__(
            f"{message}; to enable: {enable}" if enable else message, driver=driver, step=step, sandbox=sandbox
        )
        self.reason = message
        """Without the command, for who shows that apart."""
        self.enable = enable


class Saturated(DutyfreeError):
    """There is no capacity now; asking again before `retry_after_s` is pointless."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float = 1.0,
        driver: str | None = None,
        step: Step | None = None,
        sandbox: str | None = None,
    ) -> None:
        super().__init__(message, driver=driver, step=step, sandbox=sandbox)
        self.retry_after_s = retry_after_s


class SandboxLost(DutyfreeError):
    """The sandbox died under the caller; nothing more can be learnt from it. What ran in it did not finish."""


class StageFailed(DutyfreeError):
    """A stage could not be built: its own recipe failed. Nothing was kept but the log."""

    def __init__(
        self,
        message: str,
        *,
        key: str,
        log_tail: str,
        driver: str | None = None,
        step: Step | None = None,
        sandbox: str | None = None,
    ) -> None:
        super().__init__(message, driver=driver, step=step, sandbox=sandbox)
        self.key = key
        self.log_tail = log_tail

    def __str__(self) -> str:
        return f"{super().__str__()}; the log ends:\n{self.log_tail}" if self.log_tail else super().__str__()


class DriverError(DutyfreeError):
    """The substrate failed; the message names the step and what the system answered."""


def _renewed(kind: type[DutyfreeError], args: tuple[Any, ...]) -> DutyfreeError:
    """An error of another process, or a copy; its attributes are set next."""
    return kind.__new__(kind, *args)
