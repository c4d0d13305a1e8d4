"""`Boundary`: the one place where a vendor's errors become ours, without the credential that they may quote."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from dutyfree.core.errors import DutyfreeError
from dutyfree.substrates.hosted.credential import Credential

T = TypeVar("T")

_LONGEST = 2000

Classify = Callable[[BaseException, str], DutyfreeError]
"""A vendor's error and its words, which may be shown, to ours."""


class Boundary:
    """Calls of one account."""

    def __init__(
        self, errors: tuple[type[BaseException], ...], classify: Classify, secrets: Sequence[Credential] = ()
    ) -> None:
        self._errors = errors
        self._classify = classify
        self._secrets = tuple(secrets)

    async def cross(self, call: Awaitable[T]) -> T:
        """Await a call of the SDK."""
        try:
            return await call
        except self._errors as error:
            failure = self.translate(error)
        # Raised out here, so that it carries no vendor's error, whose words, arguments and frames may hold the secret.
        raise failure

    def translate(self, error: BaseException) -> DutyfreeError:
        """Our error for a vendor's."""
        words = " ".join((str(error) or type(error).__name__).split())
        for secret in self._secrets:
            words = secret.hide(words)
        return self._classify(error, words[:_LONGEST])
