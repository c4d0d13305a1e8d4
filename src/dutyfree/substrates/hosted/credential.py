"""`Credential`: a secret from the environment, which gets into the vendor's SDK and nowhere else."""

from __future__ import annotations

import os

from dutyfree.core.errors import Unavailable


class Credential:
    """The value of an environment variable. Its repr and its str are the variable's name."""

    __slots__ = ("_value", "variable")

    def __init__(self, variable: str, value: str) -> None:
        self.variable = variable
        self._value = value

    @classmethod
    def find(cls, variable: str, *, driver: str) -> Credential:
        """The one in the environment, or `Unavailable` with the command that puts it there."""
        value = os.environ.get(variable)
        if not value:
            raise Unavailable(f"{variable} is not set", enable=f"export {variable}=…", driver=driver, step="connect")
        return cls(variable, value)

    def reveal(self) -> str:
        """The secret itself: for the SDK's own argument."""
        return self._value

    def hide(self, text: str) -> str:
        """The text with the variable's name in place of the secret."""
        return text.replace(self._value, f"${self.variable}")

    def __repr__(self) -> str:
        return f"Credential({self.variable})"

    __str__ = __repr__
