"""Why a process was not started: the words of runc, runsc and the engines above them, told apart.

the caller's fault      a working directory or user that is not there, arguments too long: `Misuse`
an ordinary ending      a program that is not there (127) or not executable (126)
"""

from __future__ import annotations

import re

from dutyfree.core.errors import Misuse

_CWD = re.compile(r"chdir to cwd|cwd must|workdir|working directory|no such directory|failed to .*cwd", re.IGNORECASE)
_USER = re.compile(r"unable to find (user|group)|no matching entries in|no users found|unknown user", re.IGNORECASE)
_LONG = re.compile(r"argument list too long|E2BIG", re.IGNORECASE)
_ABSENT = re.compile(
    r"not found in \$PATH|no such file or directory|not a directory|file not found|error finding executable",
    re.IGNORECASE,
)

_REFUSED = re.compile(
    r"(Error: )?\S*:? ?(OCI runtime exec failed|exec failed:|unable to find (user|group)|no matching entries)"
)
"""How the words begin with which nothing was started; a program may say the same, and fools its own caller only."""


def is_refusal(words: str) -> bool:
    """The words are a runtime's, about a process that it did not start."""
    return _REFUSED.match(words) is not None


def is_user_refusal(words: str) -> bool:
    """The substrate does not know the user it was asked for."""
    return _USER.search(words) is not None


def ending_of(words: str, *, cwd: str | None, user: str | None, sandbox: str) -> tuple[int, bytes]:
    """The exit code a shell would give and a line for stderr; raises `Misuse` for what the caller got wrong."""
    said = words.strip()
    if is_user_refusal(said):
        raise Misuse(f"{user!r} is not known inside", field="user", sandbox=sandbox)
    if _CWD.search(said):
        raise Misuse(f"{cwd!r} is no directory inside", field="cwd", sandbox=sandbox)
    if _LONG.search(said):
        raise Misuse("arguments and environment are longer than the kernel takes", field="command", sandbox=sandbox)
    return (127 if _ABSENT.search(said) else 126), said.encode(errors="replace") + b"\n"
