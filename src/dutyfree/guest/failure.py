"""The one place where the agent's ERROR becomes an exception."""

from __future__ import annotations

import errno
import os

from dutyfree.core.errors import DriverError, Misuse
from dutyfree.guest.reply import Failure


def error_for(failure: Failure, *, sandbox: str, path: str | None = None) -> Exception:
    """`OSError` for what the sandbox's file system answers about `path`; else `Misuse` or `DriverError`."""
    answer = os.strerror(failure.errno)
    if path is not None and failure.errno and failure.what != "user":
        return OSError(failure.errno, answer, path)
    said = f"{answer}: {failure.detail}" if failure.detail else answer
    if failure.what == "user" and failure.errno == errno.ENOENT:
        name = repr(failure.detail) if failure.detail else "of that name"
        return Misuse(f"there is no user {name} in the image's /etc/passwd", field="user", sandbox=sandbox)
    if failure.what in ("cwd", "user"):
        return Misuse(said, field=failure.what, sandbox=sandbox)
    return DriverError(f"{failure.what}: {said}" if failure.what else said, step="exec", sandbox=sandbox)
