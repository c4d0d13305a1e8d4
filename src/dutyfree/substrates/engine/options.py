"""The options that engine drivers share, and how a socket is looked at without an event loop."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dutyfree.core.contract import Dispatch
from dutyfree.core.errors import Misuse
from dutyfree.core.keyword import check_names
from dutyfree.substrates.engine.profile import Profile

_CHOICES: Mapping[str, Sequence[str]] = {
    "dispatch": ("agent", "api"),
    "profile": ("default", "hardened"),
    "ready": ("poll", "wait"),
}
_PATIENCE_S = 5.0


def check_options(options: Mapping[str, str], known: Sequence[str], driver: str) -> None:
    """`Misuse` for an option nobody knows, or a value it does not have."""
    check_names(options, known, driver=driver)
    for name, value in options.items():
        if value not in _CHOICES.get(name, (value,)):
            raise Misuse(f"must be {' or '.join(_CHOICES[name])}, not {value!r}", field=name, driver=driver)


def dispatch_of(options: Mapping[str, str]) -> Dispatch:
    """`agent` unless asked otherwise."""
    return cast("Dispatch", options.get("dispatch", "agent"))


def profile_of(options: Mapping[str, str]) -> Profile:
    """`default` unless asked otherwise."""
    return cast("Profile", options.get("profile", "default"))


def ask(path: str, what: str) -> dict[str, Any] | list[Any] | str:
    """An engine's answer to a GET; or, as a string, why there is none. Blocks for a moment at most."""
    connection = http.client.HTTPConnection("engine", timeout=_PATIENCE_S)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(_PATIENCE_S)
    try:
        connection.sock.connect(path)
        connection.request("GET", what)
        answer = json.loads(connection.getresponse().read())
    except OSError as error:
        return error.strerror or str(error)
    except (ValueError, http.client.HTTPException) as error:
        return f"it is no engine: {error}"
    finally:
        connection.close()
    return answer if isinstance(answer, dict | list) else "it is no engine"
