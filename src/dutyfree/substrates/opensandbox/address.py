"""Address and key of the server, from the environment, by the names that the SDK gives them.

Where that names no server, the one that `make opensandbox` started is meant: its address and key are in a file for
its owner alone, which holds the same two variables.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core.checkout import make
from dutyfree.core.errors import Unavailable
from dutyfree.substrates.hosted.credential import Credential

NAME = "opensandbox"
PLACE = "OPEN_SANDBOX_DOMAIN"
KEY = "OPEN_SANDBOX_API_KEY"
OUR_SERVER = Path("/run/dutyfree/opensandbox/environment")
ENABLE = make("opensandbox", "export OPEN_SANDBOX_DOMAIN=…")

_PATIENCE_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Of one server."""

    domain: str
    """`host:port`, or a URL."""
    key: Credential | None
    """None: the server asks for none."""

    @classmethod
    def find(cls) -> Address:
        """The environment's, else our own server's; `Unavailable` if there is neither."""
        given: Mapping[str, str] = os.environ if os.environ.get(PLACE) else _ours()
        key = given.get(KEY)
        return cls(domain=given[PLACE], key=Credential(KEY, key) if key else None)

    @property
    def url(self) -> str:
        """With its scheme."""
        return self.domain if "://" in self.domain else f"http://{self.domain}"

    def failure(self) -> str | None:
        """Reason why the server does not answer; None: it does. Blocks."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=_PATIENCE_S):  # noqa: S310 - as it was given
                return None
        except (OSError, ValueError) as error:
            return f"the server at {self.domain} does not answer: {getattr(error, 'reason', error)}"


def _ours() -> dict[str, str]:
    try:
        lines = OUR_SERVER.read_text().splitlines()
    except FileNotFoundError:
        raise Unavailable(f"{PLACE} is not set, and no server of ours is up", enable=ENABLE, driver=NAME) from None
    except PermissionError:
        raise Unavailable(f"{PLACE} is not set, and the server of ours is root's", driver=NAME) from None
    return dict(line.split("=", 1) for line in lines)
